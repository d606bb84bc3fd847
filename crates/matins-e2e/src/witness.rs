//! The witness: a file to which each run of a task appends when it begins and when it ends.
//!
//! Lines are appended in one write each, so their order is the order of what happened. Each run
//! also takes a lock that the kernel drops only when the run and everything it started is gone: a
//! run that finds it taken says `overlap`, which no task may ever do. Keys are file names here.

use std::fs;
use std::path::{Path, PathBuf};

use crate::wait::eventually;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Begin,
    End,
    /// Another run of the same task (or of the same key) was still alive.
    Overlap,
}

#[derive(Clone, Debug)]
pub struct Mark {
    pub event: Event,
    pub task: String,
    pub attempt: u32,
    pub pid: u32,
    /// Seconds since 1970.
    pub at: f64,
    /// The `execution_key`, empty when there is none.
    pub key: String,
}

#[derive(Clone, Debug)]
pub struct Witness {
    file: PathBuf,
    locks: PathBuf,
}

impl Witness {
    pub fn new(folder: &Path) -> Witness {
        let witness = Witness { file: folder.join("witness"), locks: folder.join("locks") };
        fs::create_dir_all(&witness.locks).expect("the folder of locks can be made");
        witness
    }

    /// Shell text that does `work` under the eyes of the witness.
    pub fn shell(&self, work: &str) -> String {
        self.watched(work, "\"$(date +%s.%N)\"")
    }

    /// The same with fewer processes, for thousands of tasks: nobody notes the time.
    pub fn quick_shell(&self, work: &str) -> String {
        self.watched(work, "0")
    }

    fn watched(&self, work: &str, time: &str) -> String {
        format!(
            "mark() {{ printf '%s %s %s %s %s %s\\n' \"$1\" \"$MATINS_TASK_ID\" \
             \"$MATINS_ATTEMPT\" $$ {time} \"$MATINS_EXECUTION_KEY\" >> '{file}'; }}
exec 9>>'{locks}'/\"${{MATINS_EXECUTION_KEY:-$MATINS_TASK_ID}}\"
flock -n 9 || mark overlap
mark begin
{work}
mark end",
            file = self.file.display(),
            locks = self.locks.display(),
        )
    }

    /// Everything that was seen so far, in the order in which it happened.
    pub fn marks(&self) -> Vec<Mark> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(parse).collect()
    }

    fn of(&self, event: Event, task: &str) -> Vec<Mark> {
        self.marks().into_iter().filter(|mark| mark.event == event && mark.task == task).collect()
    }

    pub fn begins(&self, task: &str) -> Vec<Mark> {
        self.of(Event::Begin, task)
    }

    pub fn ends(&self, task: &str) -> Vec<Mark> {
        self.of(Event::End, task)
    }

    /// Runs that began, of all tasks.
    pub fn begun(&self) -> usize {
        self.marks().iter().filter(|mark| mark.event == Event::Begin).count()
    }

    /// Runs that came to their end, of all tasks.
    pub fn ended(&self) -> usize {
        self.marks().iter().filter(|mark| mark.event == Event::End).count()
    }

    /// Waits until the task's attempt has begun.
    #[track_caller]
    pub fn wait_begin(&self, task: &str, attempt: u32, within: Duration) -> Mark {
        eventually(&format!("attempt {attempt} of {task} begins"), within, || {
            self.begins(task).into_iter().find(|mark| mark.attempt == attempt)
        })
    }

    /// Fails when two runs of a task, or of a key, were ever alive at the same time.
    #[track_caller]
    pub fn assert_no_overlap(&self) {
        let overlaps: Vec<Mark> =
            self.marks().into_iter().filter(|mark| mark.event == Event::Overlap).collect();
        assert!(overlaps.is_empty(), "two runs at the same time: {overlaps:?}");
    }
}

fn parse(line: &str) -> Mark {
    let mut words = line.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let event = match word() {
        "begin" => Event::Begin,
        "end" => Event::End,
        "overlap" => Event::Overlap,
        _ => panic!("the witness wrote {line:?}"),
    };
    Mark {
        event,
        task: word().to_owned(),
        attempt: word().parse().unwrap_or_else(|_| panic!("no attempt in {line:?}")),
        pid: word().parse().unwrap_or_else(|_| panic!("no pid in {line:?}")),
        at: word().parse().unwrap_or_else(|_| panic!("no time in {line:?}")),
        key: word().to_owned(),
    }
}
