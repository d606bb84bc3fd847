//! The judgement: what the clients were promised and the witness saw, against what is recorded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::seconds_of;
use matins_e2e::{Event, Server, Task, Value, json, process, wait_for};

use crate::chaos::Chaos;
use crate::cluster::Cluster;
use crate::load::{Kind, Load, SCHEDULES};

/// No task ends for so long: nothing will.
const STANDSTILL: Duration = Duration::from_secs(90);

#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    kinds: BTreeMap<Kind, u32>,
    runs: u32,
    extra_runs: u32,
    outcomes: BTreeMap<String, u32>,
    schedules: Vec<String>,
    /// Writes for claims that no longer stood, by the logs.
    stale: usize,
    unanswered: usize,
    journalled: usize,
    /// Tasks that were journalled and found their key taken when the database was back.
    duplicates: usize,
}

/// What the witness saw of one attempt.
#[derive(Default)]
struct Seen {
    begun: u32,
    ended: u32,
}

type Witnessed = HashMap<(String, u32), Seen>;

pub(crate) fn judge(cluster: &mut Cluster, load: &Load, chaos: &Chaos) -> Verdict {
    let mut verdict = Verdict {
        unanswered: load.unanswered.load(std::sync::atomic::Ordering::Relaxed),
        journalled: load.journalled.load(std::sync::atomic::Ordering::Relaxed),
        ..Verdict::default()
    };
    for refused in &chaos.refused {
        verdict.violation(format!("a start failed: {refused}"));
    }
    for status in &chaos.bad_exits {
        verdict.violation(format!("SIGTERM ended with {status}"));
    }
    let server = &cluster.servers[0];
    verdict.come_to_rest(server);
    let witnessed = verdict.hear_the_witness(server);
    if cluster.services.as_ref().is_some_and(|services| services.redis.is_some()) {
        cluster.servers.iter().for_each(|server| verdict.judge_redis(server));
    }
    let fired = verdict.judge_schedules(server);
    verdict.judge_tasks(server, load, &witnessed, &fired);
    for server in &mut cluster.servers {
        verdict.judge_processes(server);
    }
    verdict
}

impl Verdict {
    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn come_to_rest(&mut self, server: &Server) {
        let api = server.api();
        for schedule in SCHEDULES {
            let paused = wait_for(STANDSTILL, || {
                let path = format!("/schedules/{schedule}/pause");
                (api.post(&path, &json!({})).status == 200).then_some(())
            });
            if paused.is_none() {
                self.violation(format!("{schedule} cannot be paused"));
            }
        }
        // Tasks that were lost twice run one at a time: what counts is that it goes on.
        let (mut left, mut since) = (u64::MAX, Instant::now());
        while since.elapsed() < STANDSTILL {
            let tasks = api.get("/status").expect(200).json()["tasks"].clone();
            let count = |state: &str| tasks[state].as_u64().unwrap_or(u64::MAX / 2);
            let now = count("pending") + count("running");
            if now == 0 {
                return;
            }
            if now < left {
                (left, since) = (now, Instant::now());
            }
            thread::sleep(Duration::from_millis(100));
        }
        for task in api.list("state=pending,running").iter().take(5) {
            let why = api.get(&format!("/tasks/{}/why", task.id())).text();
            self.violation(format!("{left} stand still: {} {why}", task.0));
        }
    }

    /// Each is back at Redis, and Redis knows everything again.
    fn judge_redis(&mut self, server: &Server) {
        let api = server.api();
        let sound = wait_for(Duration::from_secs(15), || {
            let ready = api.outside("/readyz").json();
            let drift = api.metric("matins_redis_drift", "");
            (ready["parts"]["redis"] == "up" && drift == Some(0.0)).then_some(())
        });
        if sound.is_none() {
            let drift = api.metric("matins_redis_drift", "");
            let ready = api.outside("/readyz").json();
            self.violation(format!("not back at Redis: drift {drift:?}, {ready}"));
        }
    }

    fn hear_the_witness(&mut self, server: &Server) -> Witnessed {
        let mut witnessed = Witnessed::new();
        for mark in server.witness.marks() {
            let seen = witnessed.entry((mark.task.clone(), mark.attempt)).or_default();
            match mark.event {
                Event::Begin => seen.begun += 1,
                Event::End => seen.ended += 1,
                Event::Overlap => {
                    self.violation(format!("two runs at the same time: {mark:?}"));
                }
            }
        }
        for ((task, attempt), seen) in &witnessed {
            if seen.begun != 1 || seen.ended > 1 {
                self.violation(format!("attempt {attempt} of {task} began {} times", seen.begun));
            }
        }
        witnessed
    }

    /// The ids of the tasks that schedules made.
    fn judge_schedules(&mut self, server: &Server) -> HashSet<String> {
        let api = server.api();
        let mut fired = HashSet::new();
        for name in SCHEDULES {
            let schedule = api.get(&format!("/schedules/{name}")).expect(200).json();
            let balance = &schedule["balance"];
            let number = |what: &str| balance[what].as_u64().unwrap_or(u64::MAX / 8);
            let sum: u64 =
                ["fired", "coalesced", "skipped", "missed"].into_iter().map(number).sum();
            if number("expected") != sum {
                self.violation(format!("{name}: expected is not the sum: {balance}"));
            }
            let occurrences = api.occurrences(name);
            self.judge_occurrences(name, &occurrences, number("expected"), &mut fired);
            self.schedules.push(format!("{name}: {balance}"));
        }
        fired
    }

    /// Each mark from the first to the last is decided once.
    fn judge_occurrences(
        &mut self,
        name: &str,
        occurrences: &[Value],
        expected: u64,
        fired: &mut HashSet<String>,
    ) {
        let period = if matches!(name, "interval" | "keyed") { 2 } else { 1 };
        let mut marks: Vec<i64> = Vec::new();
        for occurrence in occurrences {
            let first = seconds_of(occurrence["time"].as_str().unwrap_or("")) as i64;
            let count = occurrence["count"].as_i64().unwrap_or(1);
            marks.extend((0..count).map(|n| first + n * period));
            if occurrence["outcome"] == "fired" {
                let task = occurrence["task_id"].as_str().unwrap_or("").to_owned();
                if !fired.insert(task) {
                    self.violation(format!("{name}: one task for two marks: {occurrence}"));
                }
            } else if occurrence["reason"].is_null() {
                self.violation(format!("{name}: no reason: {occurrence}"));
            }
        }
        marks.sort_unstable();
        for pair in marks.windows(2) {
            if pair[1] - pair[0] != period {
                self.violation(format!("{name}: {} follows on {}", pair[1], pair[0]));
            }
        }
        if marks.len() as u64 != expected {
            self.violation(format!("{name}: {} marks, {expected} in the balance", marks.len()));
        }
    }

    fn judge_tasks(
        &mut self,
        server: &Server,
        load: &Load,
        witnessed: &Witnessed,
        fired: &HashSet<String>,
    ) {
        let api = server.api();
        let accepted = load.accepted();
        let stored: HashSet<String> =
            api.list("").iter().map(|task| task.id().to_owned()).collect();
        let mut calls = HashMap::<String, i64>::new();
        for call in load.stub.calls() {
            let id = call.headers.get("idempotency-key").cloned().unwrap_or_default();
            *calls.entry(id).or_default() += 1;
        }
        for (id, kind) in &accepted {
            *self.kinds.entry(*kind).or_default() += 1;
            if !stored.contains(id) {
                self.violation(format!("accepted and lost: {kind:?} {id}"));
            }
        }
        let mut completed_keys = HashMap::<String, u32>::new();
        for id in &stored {
            let task = api.task(id);
            // Journalled without an answer, so that the client asked again: the key makes it one.
            let key = task.0["execution_key"].as_str().unwrap_or("");
            let again = self.journalled > 0 && key.starts_with("key-");
            if !accepted.contains_key(id) && !fired.contains(id) && !again {
                self.violation(format!("nobody asked for it: {}", task.0));
            }
            if task.0["cancel_reason"] == "duplicate_key" || task.deduplicated() {
                self.judge_duplicate(&task, again, witnessed);
                continue;
            }
            if let (Some(key), "completed") = (task.0["execution_key"].as_str(), task.state()) {
                *completed_keys.entry(key.to_owned()).or_default() += 1;
            }
            let kind = accepted.get(id).copied().unwrap_or(Kind::Command);
            self.judge_task(&task, kind, witnessed);
            if matches!(kind, Kind::Http | Kind::FlakyHttp) {
                let calls = calls.get(id).copied().unwrap_or(0);
                if calls < 1 || calls > task.number("attempt") {
                    self.violation(format!("{calls} calls for {}", task.0));
                }
            }
        }
        for id in fired.difference(&stored) {
            self.violation(format!("fired and lost: {id}"));
        }
        for (key, times) in completed_keys {
            if times != 1 {
                self.violation(format!("{key} completed {times} times"));
            }
        }
    }

    /// Another one did the work of its key.
    fn judge_duplicate(&mut self, task: &Task, may_be: bool, witnessed: &Witnessed) {
        self.duplicates += 1;
        let ran = witnessed.keys().any(|(id, _)| id == task.id());
        if ran || !may_be {
            self.violation(format!("no duplicate of another: {}", task.0));
        }
    }

    /// One task: its end, its attempts, and each run that the witness saw.
    fn judge_task(&mut self, task: &Task, kind: Kind, witnessed: &Witnessed) {
        let wanted = if kind == Kind::Failing { "failed" } else { "completed" };
        if task.state() != wanted {
            self.violation(format!("{kind:?} is {}, not {wanted}: {}", task.state(), task.0));
        }
        let attempts = task.attempts();
        if attempts.len() as i64 != task.number("attempt") {
            self.violation(format!("{} attempts recorded of {}", attempts.len(), task.0));
        }
        let mut counts = HashMap::<&str, i64>::new();
        let (mut runs, mut ends) = (0, 0);
        for (index, attempt) in attempts.iter().enumerate() {
            let outcome = attempt["outcome"].as_str().unwrap_or("none");
            *counts.entry(outcome).or_default() += 1;
            *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
            if attempt["number"].as_u64() != Some(index as u64 + 1) {
                self.violation(format!("attempts out of order: {}", task.0));
            }
            let seen = witnessed.get(&(task.id().to_owned(), index as u32 + 1));
            let (begun, ended) = seen.map_or((0, 0), |seen| (seen.begun, seen.ended));
            runs += begun;
            ends += ended;
            let watched = !matches!(kind, Kind::Http | Kind::FlakyHttp);
            if watched && outcome == "completed" && (begun, ended) != (1, 1) {
                self.violation(format!("attempt {} completed unseen: {}", index + 1, task.0));
            }
            if outcome == "failed" && ended > 0 {
                self.violation(format!("attempt {} ended well and failed: {}", index + 1, task.0));
            }
        }
        self.runs += runs;
        self.extra_runs += runs.saturating_sub(1);
        let count = |outcome: &str| counts.get(outcome).copied().unwrap_or(0);
        let completed = i64::from(wanted == "completed");
        if count("completed") != completed {
            self.violation(format!("{} completions of {}", count("completed"), task.0));
        }
        for (outcome, field) in [("lost", "losses"), ("interrupted", "interruptions")] {
            if count(outcome) != task.number(field) {
                self.violation(format!("{} {outcome}, {field} in {}", count(outcome), task.0));
            }
        }
        let explained = count("lost") + count("interrupted") + count("failed");
        if i64::from(runs) > completed + explained || i64::from(ends) > completed + explained {
            self.violation(format!("{runs} runs, {explained} explained: {}", task.0));
        }
        if task.number("retries") != count("failed") - i64::from(kind == Kind::Failing) {
            self.violation(format!("retries are not its failures: {}", task.0));
        }
    }

    fn judge_processes(&mut self, server: &mut Server) {
        let left = wait_for(Duration::from_secs(3), || server.workers().is_empty().then_some(()));
        if left.is_none() {
            self.violation(format!("processes are left: {:?}", server.workers()));
        }
        let runners = process::descendants(server.served_by().unwrap_or_default());
        if !runners.is_empty() {
            self.violation(format!("runners are left: {runners:?}"));
        }
        let log = server.log_text();
        self.stale += log.matches("refused a write: the claim no longer stands").count();
        if log.contains("panicked") {
            self.violation("the log tells of a panic".to_owned());
        }
        let health = server.api().health();
        if health.0 != 200 {
            self.violation(format!("not healthy at the end: {health:?}"));
        }
        server.kill();
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted: u32 = self.kinds.values().sum();
        writeln!(f, "{accepted} tasks accepted: {:?}", self.kinds)?;
        writeln!(f, "{} requests without an answer, sent again", self.unanswered)?;
        let Self { journalled, duplicates, .. } = self;
        writeln!(
            f,
            "{journalled} taken in without the database, {duplicates} of them for a key that another had"
        )?;
        writeln!(f, "{} runs seen, {} more than one per task", self.runs, self.extra_runs)?;
        writeln!(f, "attempts recorded: {:?}", self.outcomes)?;
        writeln!(f, "{} writes for claims that no longer stood, refused", self.stale)?;
        for schedule in &self.schedules {
            writeln!(f, "schedule {schedule}")?;
        }
        for violation in self.violations.iter().take(20) {
            writeln!(f, "VIOLATION {violation}")?;
        }
        match self.violations.len() {
            0 => writeln!(f, "every task, run and occurrence is accounted for"),
            n => writeln!(f, "{n} violations"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(attempts: &Value, losses: u32) -> Task {
        let count = attempts.as_array().map_or(0, Vec::len);
        Task(json!({
            "id": "t", "state": "completed", "attempt": count, "attempts": attempts,
            "losses": losses, "interruptions": 0, "retries": 0
        }))
    }

    fn seen(attempts: &[(u32, u32, u32)]) -> Witnessed {
        attempts
            .iter()
            .map(|(attempt, begun, ended)| {
                (("t".to_owned(), *attempt), Seen { begun: *begun, ended: *ended })
            })
            .collect()
    }

    fn violations(task: &Task, witnessed: &Witnessed) -> usize {
        let mut verdict = Verdict::default();
        verdict.judge_task(task, Kind::Command, witnessed);
        verdict.violations.len()
    }

    #[test]
    fn a_sound_history_is_no_violation_and_an_unsound_one_is() {
        let lost = json!([{"number": 1, "outcome": "lost"}, {"number": 2, "outcome": "completed"}]);
        assert_eq!(violations(&task(&lost, 1), &seen(&[(1, 1, 0), (2, 1, 1)])), 0);
        // The kill came between the end of the work and its record.
        assert_eq!(violations(&task(&lost, 1), &seen(&[(1, 1, 1), (2, 1, 1)])), 0);
        // Completed without having run, twice completed, a loss that is not counted, a gap.
        assert!(violations(&task(&lost, 1), &seen(&[(1, 1, 0)])) > 0);
        let twice = json!([
            {"number": 1, "outcome": "completed"}, {"number": 2, "outcome": "completed"}
        ]);
        assert!(violations(&task(&twice, 0), &seen(&[(1, 1, 1), (2, 1, 1)])) > 0);
        assert!(violations(&task(&lost, 0), &seen(&[(1, 1, 0), (2, 1, 1)])) > 0);
        let gap = json!([{"number": 2, "outcome": "completed"}]);
        assert!(violations(&task(&gap, 0), &seen(&[(1, 1, 1)])) > 0);
        // A run that nobody recorded.
        let once = json!([{"number": 1, "outcome": "completed"}]);
        assert!(violations(&task(&once, 0), &seen(&[(1, 2, 2)])) > 0);
    }

    #[test]
    fn marks_that_are_missing_or_decided_twice_are_violations() {
        let mark = |second: u32, task: &str| {
            json!({
                "time": format!("2026-11-29T12:00:{second:02}Z"), "count": 1,
                "outcome": "fired", "task_id": task
            })
        };
        let judge = |occurrences: &[Value], expected| {
            let mut verdict = Verdict::default();
            let mut fired = HashSet::new();
            verdict.judge_occurrences("every-second", occurrences, expected, &mut fired);
            verdict.violations.len()
        };
        assert_eq!(judge(&[mark(1, "a"), mark(2, "b")], 2), 0);
        assert!(judge(&[mark(1, "a"), mark(3, "b")], 2) > 0, "a gap");
        assert!(judge(&[mark(1, "a"), mark(1, "b")], 2) > 0, "decided twice");
        assert!(judge(&[mark(1, "a"), mark(2, "a")], 2) > 0, "one task for two");
        assert!(judge(&[mark(1, "a")], 2) > 0, "not what the balance says");
    }
}
