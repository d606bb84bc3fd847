//! Nothing outlives its limit: the whole tree, whatever it did to get away.

use std::time::{Duration, Instant};

use matins_runtime::process::{End, Lease, Moment, RunId, Status, Swept, sweep_leftovers};
use rustix::process::Signal;

use crate::second;
use crate::witness::{
    Token, block_on, children, eventually, finish, parent, run, runner, shell, signal, text,
};

crate::cases![
    a_shell_and_its_background_child_time_out_together,
    a_tree_that_ignores_term_is_killed_after_grace,
    a_stopped_tree_is_ended,
    sessions_double_forks_and_cleared_environments_are_found,
    a_process_that_forks_all_the_time_is_caught,
    what_a_finished_command_left_is_swept_at_once,
    matins_killed,
    runner_killed_by_its_task,
    runner_killed_by_a_task_that_hid_itself,
    runner_stopped_by_its_task,
    runner_is_deaf_to_signals,
    a_dropped_run_ends_its_tree,
    leftovers_of_a_dead_node_are_swept,
    orphans_are_reaped_while_the_command_runs,
    a_long_command_gets_a_control_group_where_it_may,
];

/// Four ways out: a child, a session of its own, a double fork, an empty environment as well.
fn escapes(token: &Token) -> String {
    let t = &token.0;
    format!(
        "sleep {t} & setsid sleep {t} & (setsid sh -c 'sleep {t} & sleep {t} & exit' &) ; \
         env -i setsid /bin/sleep {t} & sleep {t}"
    )
}
const ESCAPED: usize = 6;

fn a_shell_and_its_background_child_time_out_together() {
    let token = Token::new();
    let mut spec = shell(&format!("sleep {} & wait", token.0));
    spec.timeout = Some(Duration::from_secs(2));
    let started = Instant::now();
    let exit = run(spec);
    let took = started.elapsed();
    token.assert_gone();
    assert_eq!(exit.end, End::TimedOut);
    assert_eq!(exit.status, Some(Status::Signal(15)));
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(4), "{took:?}");
}

fn a_tree_that_ignores_term_is_killed_after_grace() {
    let token = Token::new();
    let mut spec = shell(&format!(
        "trap '' TERM; (while :; do sleep {}; done) & while :; do sleep 0.05; done",
        token.0
    ));
    spec.timeout = Some(Duration::from_millis(300));
    spec.grace = Duration::from_millis(700);
    let started = Instant::now();
    let exit = run(spec);
    let took = started.elapsed();
    token.assert_gone();
    assert_eq!((exit.end, exit.status), (End::TimedOut, Some(Status::Signal(9))));
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
}

fn a_stopped_tree_is_ended() {
    let token = Token::new();
    let mut spec = shell(&format!("sleep {} & kill -STOP $!; kill -STOP $$", token.0));
    spec.timeout = Some(Duration::from_millis(300));
    let started = Instant::now();
    let exit = run(spec);
    token.assert_gone();
    assert_eq!(exit.end, End::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(3), "TERM was not acted on");
}

fn sessions_double_forks_and_cleared_environments_are_found() {
    let token = Token::new();
    let mut spec = shell(&escapes(&token));
    spec.timeout = Some(Duration::from_millis(800));
    let waiting = std::thread::spawn(move || run(spec));
    token.wait_for(ESCAPED);
    let exit = waiting.join().unwrap();
    token.assert_gone();
    assert_eq!((exit.end, exit.survivors), (End::TimedOut, 0));
}

fn a_process_that_forks_all_the_time_is_caught() {
    let token = Token::new();
    // Each copy starts the next one and goes; the arguments carry the token along.
    let script = "import os\nos.setsid()\nwhile True:\n if os.fork(): os._exit(0)\n";
    let mut spec = crate::witness::argv(&["python3", "-c", script, &token.0]);
    spec.timeout = Some(Duration::from_millis(500));
    spec.grace = Duration::from_millis(200);
    let spawned = Instant::now();
    let exit = run(spec);
    assert!(spawned.elapsed() < Duration::from_secs(5));
    token.assert_gone();
    assert_eq!(exit.survivors, 0);
}

fn what_a_finished_command_left_is_swept_at_once() {
    let token = Token::new();
    let stubborn = format!("trap '' TERM; while :; do sleep {}; done", token.0);
    for (background, limit) in [(format!("sleep {}", token.0), 400), (stubborn, 2000)] {
        let started = Instant::now();
        let exit = run(shell(&format!("({background}) & sleep 0.05; echo done; exit 3")));
        let took = started.elapsed();
        token.assert_gone();
        assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(3), "done\n".into()));
        assert!(took < Duration::from_millis(limit), "{background}: {took:?}");
    }
}

fn matins_killed() {
    let token = Token::new();
    let grace = Duration::from_millis(500);
    let text = format!("trap '' TERM; {}", escapes(&token));
    let mut matins = second::start(&text, Duration::ZERO, grace, false);
    token.wait_for(ESCAPED);
    let killed = Instant::now();
    matins.kill().unwrap();
    eventually("the tree is gone", || token.alive().is_empty());
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    matins.wait().unwrap();
}

fn runner_killed_by_its_task() {
    let token = Token::new();
    let t = &token.0;
    let spec =
        shell(&format!("echo before; setsid sleep {t} & sleep 0.1; kill -9 $PPID; sleep {t}"));
    let exit = run(spec);
    token.assert_gone();
    assert_eq!((exit.end.clone(), exit.survivors), (End::RunnerLost, 0));
    assert_eq!(text(&exit), "before\n");
}

/// With the mark gone, the session left and the runner dead, only adoption leads to it.
fn runner_killed_by_a_task_that_hid_itself() {
    let token = Token::new();
    let hidden = format!("env -i setsid /bin/sleep {} & sleep 0.05; kill -9 $PPID", token.0);
    let matins = second::start(&hidden, Duration::ZERO, Duration::from_secs(1), true);
    let output = matins.wait_with_output().unwrap();
    token.assert_gone();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "RunnerLost survivors 0\n");
}

fn runner_stopped_by_its_task() {
    let token = Token::new();
    let mut spec = shell(&format!("kill -STOP $PPID; sleep {}", token.0));
    // As the engine does it: the holder's limit lies a tenth before the end of the lease.
    let lease_end = Moment::now().after(Duration::from_secs(5));
    let deadline = lease_end.before(Duration::from_millis(500));
    spec.lease = Some(Lease { deadline, grace: Duration::from_millis(100) });
    let exit = run(spec);
    token.assert_gone();
    assert!(Moment::now() < lease_end, "the tree outlived the lease");
    assert_eq!((exit.end, exit.survivors), (End::LeaseLost, 0));
}

fn runner_is_deaf_to_signals() {
    let exit = run(shell(
        "for s in TERM INT HUP QUIT USR1 USR2; do kill -$s $PPID; done; sleep 0.2; echo alive",
    ));
    assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(0), "alive\n".into()));
}

fn a_dropped_run_ends_its_tree() {
    let token = Token::new();
    block_on(async {
        let running = runner().spawn(shell(&escapes(&token))).await.unwrap();
        token.wait_for(ESCAPED);
        drop(running);
        eventually("the tree is gone", || token.alive().is_empty());
    });
}

fn leftovers_of_a_dead_node_are_swept() {
    let (dead, other) = (Token::new(), Token::new());
    let leave = |node: &str, token: &Token| {
        let run = RunId::new(node).to_string();
        let text = format!("setsid sh -c 'sleep {t} & env -i sleep {t} & wait' &", t = token.0);
        std::process::Command::new("sh").args(["-c", &text]).env("MATINS_RUN", run).status()
    };
    let node = format!("dead/{}", dead.0);
    leave(&node, &dead).unwrap();
    leave("alive", &other).unwrap();
    dead.wait_for(2);
    other.wait_for(2);
    let swept = sweep_leftovers(|run| run.node == node);
    dead.assert_gone();
    // Two sleepers and the shell that waits for them.
    assert_eq!(swept, Swept { killed: 3, survivors: 0 });
    assert_eq!(other.alive().len(), 2, "another node's processes are not ours to kill");
    for pid in other.alive() {
        signal(pid, Signal::KILL);
    }
    assert_eq!(sweep_leftovers(|run| run.node == node), Swept::default());
}

fn orphans_are_reaped_while_the_command_runs() {
    let token = Token::new();
    let orphans = "for i in 1 2 3 4 5 6 7 8 9; do (setsid true &); done";
    let spec = shell(&format!("{orphans}; exec sleep {}", token.0));
    block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        let control = running.control();
        let task = tokio::spawn(running.wait(|_, _| ()));
        let runner = parent(token.wait_for(1)[0]);
        // Only the command is left, and nothing in state Z.
        eventually("orphans are reaped", || children(runner).len() == 1);
        control.cancel(None);
        assert_eq!(task.await.unwrap().end, End::Cancelled);
    });
    let own = std::process::id() as i32;
    let zombies: Vec<_> = children(own).into_iter().filter(|(_, state)| state == "Z").collect();
    assert!(zombies.is_empty(), "{zombies:?}");
}

fn a_long_command_gets_a_control_group_where_it_may() {
    let token = Token::new();
    let hidden =
        format!("env -i setsid /bin/sleep {t} & sleep 0.6; kill -9 $PPID; sleep {t}", t = token.0);
    let mut spec = shell(&hidden);
    spec.grace = Duration::from_secs(1);
    let group = format!("matins:test:{}", spec.run.id);
    let waiting = std::thread::spawn(move || block_on(finish(spec)));
    let pid = token.wait_for(1)[0];
    let membership = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned);
    let may = own.is_some_and(|_| {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(500) {
            if membership().contains(&group) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    });
    let exit = waiting.join().unwrap();
    assert_eq!(exit.end, End::RunnerLost);
    if may {
        token.assert_gone();
    } else {
        // Root may always make a group below its own; without one this process is out of reach
        // of a Matins that does not adopt orphans.
        assert!(!rustix::process::geteuid().is_root() || !has_unified_hierarchy());
        token.alive().into_iter().for_each(|pid| signal(pid, Signal::KILL));
    }
    let groups = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &group])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&groups.stdout), "", "the group was not removed");
}

fn has_unified_hierarchy() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.contains(" - cgroup2 ") && line.contains(" rw"))
}
