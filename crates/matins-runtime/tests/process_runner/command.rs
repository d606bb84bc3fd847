//! Commands as tasks.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use matins_core::duration::Timeout;
use matins_core::executor::{Executor as _, Finished, StopReason};
use matins_core::lifecycle::Outcome;
use matins_core::limits::Limits;
use matins_core::task::{ErrorClass, Origin, Task, TaskError};
use matins_runtime::executors::command::{CommandExecutor, CommandHost};
use matins_runtime::executors::{CommandConfig, CommandLine, ResultMode, Setting};
use uuid::Uuid;

use crate::engine::{Engine, task};
use crate::witness::{Token, block_on, runner};

crate::cases![
    a_task_is_told_what_it_is,
    a_large_payload_comes_on_standard_input_only,
    ends_are_told_apart,
    a_task_that_kills_its_runner_is_lost,
    a_result_is_json_or_nothing,
    a_payload_may_say_what_to_run,
    a_wrong_payload_is_hopeless,
    a_timeout_is_followed_by_its_cleanup,
    stopping_reads_as_its_reason,
    a_lease_is_renewed_through_the_engine,
    a_lost_lease_is_a_loss,
    secrets_of_the_file_stay_secret,
    several_at_once_do_not_mix,
];

fn host() -> CommandHost {
    CommandHost { runner: runner(), node_id: "test".into(), limits: Limits::default() }
}

fn shell(text: &str) -> CommandConfig {
    CommandConfig::new(CommandLine::Shell(text.into()), "/tmp".into())
}

fn run_with(config: CommandConfig, task: Task) -> Finished {
    let executor = CommandExecutor::of_type(host(), config);
    block_on(executor.run(Engine::new().run(task)))
}

fn run(text: &str) -> Finished {
    run_with(shell(text), task("tidy", "{}"))
}

fn ad_hoc(payload: &str) -> Finished {
    let executor = CommandExecutor::ad_hoc(host(), "/usr".into());
    block_on(executor.run(Engine::new().run(task("command", payload))))
}

#[track_caller]
fn failure(finished: &Finished) -> (&TaskError, bool) {
    match &finished.outcome {
        Outcome::Failed { error, permanent, retry_after: None } => (error, *permanent),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn result(finished: &Finished) -> Option<&str> {
    match &finished.outcome {
        Outcome::Completed { result, result_dropped_bytes: None } => {
            result.as_ref().map(matins_core::Json::as_str)
        }
        other => panic!("{other:?} {}", finished.trace.output.text()),
    }
}

fn a_task_is_told_what_it_is() {
    let mut task = task("sync", r#"{"n": 1E400}"#);
    task.execution_key = Some("orders-2026-11-29".into());
    task.origin = Some(Origin {
        schedule_uid: Uuid::nil(),
        schedule: "nightly".into(),
        label: "2026-11-30T02:00:00".into(),
        time: "2026-11-29T18:00:00Z".parse().unwrap(),
    });
    let id = task.id.to_string();
    let mut config = shell("env | grep ^MATINS_ | grep -v MATINS_RUN | sort; echo; cat; pwd");
    config.cwd = "/usr".into();
    let finished = run_with(config, task);
    let expected = format!(
        "MATINS_ATTEMPT=3\nMATINS_EXECUTION_KEY=orders-2026-11-29\nMATINS_FENCE=42\n\
         MATINS_OCCURRENCE_DATE=2026-11-30\nMATINS_OCCURRENCE_TIME=2026-11-29T18:00:00Z\n\
         MATINS_PAYLOAD={{\"n\": 1E400}}\nMATINS_TASK_ID={id}\n\n{{\"n\": 1E400}}/usr\n"
    );
    assert_eq!(finished.trace.output.text(), expected);
    assert_eq!(finished.trace.exit_code, Some(0));
}

fn a_large_payload_comes_on_standard_input_only() {
    for (size, expected) in [(32 << 10, "set\n32768\n"), ((32 << 10) + 1, "\n32769\n")] {
        let payload = format!("\"{}\"", "x".repeat(size - 2));
        let finished = run_with(shell("echo ${MATINS_PAYLOAD:+set}; wc -c"), task("big", &payload));
        assert_eq!(finished.trace.output.text(), expected);
    }
}

fn ends_are_told_apart() {
    use ErrorClass::{Exit, Oom, Signal};
    for (text, class, permanent, message) in [
        ("exit 3", Exit, false, "exit code 3"),
        ("echo out; echo 'why  ' >&2; exit 78", Exit, true, "exit code 78: why"),
        ("exit 126", Exit, true, "exit code 126"),
        ("kill -SEGV $$", Signal, false, "killed by signal 11 (SIGSEGV)"),
        ("kill -9 $$", Signal, false, "killed by signal 9 (SIGKILL)"),
    ] {
        let finished = run(text);
        let (error, hopeless) = failure(&finished);
        assert_eq!((error.class, hopeless, &error.message[..]), (class, permanent, message));
    }
    let missing = run("no-such-program-at-all");
    let (error, permanent) = failure(&missing);
    assert_eq!((error.class, permanent, missing.trace.exit_code), (Exit, true, Some(127)));
    let mut config = shell("exit 2");
    config.permanent_exit_codes = vec![2];
    assert!(failure(&run_with(config, task("x", "{}"))).1);
    let mut config = shell("kill -9 $$");
    config.memory_max = Some(1 << 30);
    assert_eq!(failure(&run_with(config, task("x", "{}"))).0.class, Oom);
    let mut config = shell("true");
    config.cwd = "/no/such/folder".into();
    let finished = run_with(config, task("x", "{}"));
    let (error, permanent) = failure(&finished);
    assert_eq!((error.class, permanent), (ErrorClass::Spawn, true));
    assert_eq!(error.message, "cwd: /no/such/folder: No such file or directory (os error 2)");
}

fn a_task_that_kills_its_runner_is_lost() {
    let finished = run("echo so far; sleep 0.3; kill -9 $PPID; sleep 5");
    assert!(matches!(&finished.outcome, Outcome::Lost { error }
        if error.class == ErrorClass::WorkerLost));
    assert_eq!(finished.trace.output.text(), "so far\n");
}

fn a_result_is_json_or_nothing() {
    assert_eq!(result(&run("echo log; echo '{\"rows\": 1E400}'")), Some("{\"rows\": 1E400}"));
    assert_eq!(result(&run("echo no json")), None);
    assert_eq!(result(&run(r"printf '\377'")), None);
    assert_eq!(result(&run("true")), None);
    let mut config = shell(r"printf 'a\377\000'");
    config.result = ResultMode::Stdout;
    assert_eq!(result(&run_with(config, task("x", "{}"))), Some("\"a\u{fffd}\\u0000\""));
    let mut config = shell("echo '{\"a\":1}'");
    config.result = ResultMode::None;
    assert_eq!(result(&run_with(config, task("x", "{}"))), None);
    let finished = run("head -c 300000 /dev/zero | tr '\\0' 1");
    let expected = Outcome::Completed { result: None, result_dropped_bytes: Some(300_000) };
    assert_eq!(finished.outcome, expected);
}

fn a_payload_may_say_what_to_run() {
    let finished = ad_hoc(
        r#"{"argv":["sh","-c","pwd; echo $A; cat"],"cwd":"lib","env":{"A":"b c"},"stdin":"in"}"#,
    );
    assert_eq!(finished.trace.output.text(), "/usr/lib\nb c\nin");
    assert_eq!(result(&ad_hoc(r#"{"shell":"cat; echo 7"}"#)), Some("7"));
}

fn a_wrong_payload_is_hopeless() {
    for (payload, expected) in [
        (r#"{"argv":["true"],"usr":"root"}"#, "payload: unknown field \"usr\", "),
        (r#"{"argv":["echo","a\u0000b"]}"#, "argv: must not contain a NUL character"),
        (r#"{"shell":"true","env":{"A=":"1"}}"#, "env: \"A=\" is not a variable name"),
        (r#"{"shell":"\ud800"}"#, "payload: "),
    ] {
        let finished = ad_hoc(payload);
        let (error, permanent) = failure(&finished);
        assert_eq!((error.class, permanent), (ErrorClass::Permanent, true), "{payload}");
        assert!(error.message.starts_with(expected), "{payload}: {}", error.message);
    }
}

fn a_timeout_is_followed_by_its_cleanup() {
    let token = Token::new();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("cleaned");
    let mut config = shell(&format!("trap '' TERM; while :; do sleep {}; done", token.0));
    config.env.insert("TOKEN".into(), Setting::plain(&token.0));
    // It sees what is left of the tree it cleans up after.
    let clean = format!(
        "seen=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'); \
         echo \"$seen\" | grep -cx $TOKEN > {t}; exit 4",
        t = trace.display()
    );
    config.on_timeout = Some((CommandLine::Shell(clean), Duration::from_secs(5)));
    let mut timed = task("slow", "{}");
    timed.timeout = Some(Timeout::After(Duration::from_millis(300)));
    let finished = run_with(config.clone(), timed.clone());
    token.assert_gone();
    let Outcome::TimedOut { error } = &finished.outcome else { panic!("{:?}", finished.outcome) };
    assert_eq!(error.class, ErrorClass::Timeout);
    assert!(error.message.starts_with("did not end within "), "{}", error.message);
    assert!(error.message.ends_with("; on_timeout: exit code 4"), "{}", error.message);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "0\n");
    // The cleanup has a limit of its own.
    config.on_timeout = Some((CommandLine::Shell("sleep 20".into()), Duration::from_millis(200)));
    let started = Instant::now();
    let finished = run_with(config, timed);
    assert!(started.elapsed() < Duration::from_secs(5));
    let Outcome::TimedOut { error } = &finished.outcome else { panic!("{:?}", finished.outcome) };
    assert!(error.message.ends_with("; on_timeout: did not end in time"), "{}", error.message);
}

/// Stops a run whose command answers TERM with an exit code.
fn stopped(reason: StopReason, code: i32) -> Outcome {
    let token = Token::new();
    let text = format!("echo started; trap 'exit {code}' TERM; sleep {} & wait", token.0);
    let executor = CommandExecutor::of_type(host(), shell(&text));
    let engine = Engine::new();
    let finished = block_on(async {
        let work = executor.run(engine.run(task("x", "{}")));
        let stop = async {
            while token.alive().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            engine.stop(reason);
        };
        tokio::join!(work, stop).0
    });
    token.assert_gone();
    let seen = (finished.trace.output.text(), engine.live());
    assert_eq!(seen, ("started\n".into(), "started\n".into()), "{reason:?}");
    finished.outcome
}

fn stopping_reads_as_its_reason() {
    assert_eq!(stopped(StopReason::Cancel, 3), Outcome::Cancelled);
    assert_eq!(stopped(StopReason::Shutdown, 3), Outcome::Interrupted);
    for code in [0, 3] {
        let timed_out = stopped(StopReason::Timeout, code);
        assert!(matches!(timed_out, Outcome::TimedOut { .. }), "{timed_out:?}");
        let lost = stopped(StopReason::LeaseLost, code);
        assert!(matches!(lost, Outcome::Lost { .. }), "{lost:?}");
    }
    for reason in [StopReason::Cancel, StopReason::Shutdown] {
        let done = stopped(reason, 0);
        assert!(matches!(done, Outcome::Completed { .. }), "{reason:?} {done:?}");
    }
}

fn a_lease_is_renewed_through_the_engine() {
    let engine = Engine::new();
    engine.lease_for(Duration::from_millis(1200));
    let executor = CommandExecutor::of_type(host(), shell("sleep 2.5; echo 1"));
    let finished = block_on(async {
        let mut work = std::pin::pin!(executor.run(engine.run(task("x", "{}"))));
        loop {
            tokio::select! {
                finished = &mut work => return finished,
                () = tokio::time::sleep(Duration::from_millis(300)) => {
                    engine.lease_for(Duration::from_millis(1200));
                }
            }
        }
    });
    assert_eq!(result(&finished), Some("1"));
}

fn a_lost_lease_is_a_loss() {
    let engine = Engine::new();
    engine.lease_for(Duration::from_secs(1));
    let executor = CommandExecutor::of_type(host(), shell("sleep 20"));
    let finished = block_on(executor.run(engine.run(task("x", "{}"))));
    let Outcome::Lost { error } = &finished.outcome else { panic!("{:?}", finished.outcome) };
    assert_eq!(error.message, "ended because the lease was not renewed in time");
}

fn secrets_of_the_file_stay_secret() {
    let mut config =
        shell("env >&2; echo \"last $PASSWORD\" >&2; echo \"\\\"$PASSWORD\\\"\"; exit 1");
    config.env = BTreeMap::from([
        ("PASSWORD".to_owned(), Setting::secret("S3KRIT-42")),
        ("PLAIN".to_owned(), Setting::plain("shown")),
    ]);
    let engine = Engine::new();
    let executor = CommandExecutor::of_type(host(), config);
    let finished = block_on(executor.run(engine.run(task("x", "{}"))));
    let everything = format!("{finished:?} {} {}", finished.trace.output.text(), engine.live());
    assert!(!everything.contains("S3KRIT"), "{everything}");
    assert!(everything.contains("PASSWORD=***") && everything.contains("PLAIN=shown"));
    assert_eq!(failure(&finished).0.message, "exit code 1: last ***");
}

fn several_at_once_do_not_mix() {
    let executor = CommandExecutor::of_type(host(), shell("sleep 0.1; cat; exit 0"));
    block_on(async {
        let runs = (0..20).map(|n| {
            let engine = Engine::new();
            let run = engine.run(task("x", &n.to_string()));
            let executor = &executor;
            async move { (executor.run(run).await, engine) }
        });
        for (n, (finished, engine)) in futures_util::future::join_all(runs).await.iter().enumerate()
        {
            assert_eq!(result(finished), Some(&n.to_string()[..]));
            assert_eq!(engine.live(), n.to_string());
        }
    });
}
