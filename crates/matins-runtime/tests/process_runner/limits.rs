//! Deadlines: timeout, lease, cancel, also for a runner or a Matins that was stopped meanwhile.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use matins_runtime::process::{End, Lease, Moment, Running, Status};
use rustix::process::Signal;

use crate::second;
use crate::witness::{Token, block_on, eventually, parent, run, runner, shell, signal};

crate::cases![
    a_lease_that_is_not_renewed_ends_the_tree_before_it_does,
    a_renewed_lease_lets_the_command_finish,
    a_renewal_from_the_past_renews_nothing,
    matins_stopped_past_its_lease,
    runner_and_matins_stopped_past_the_lease,
    runner_and_matins_stopped_past_the_timeout,
    cancel_lets_the_command_clean_up,
    a_second_cancel_without_grace_is_immediate,
    what_ended_by_itself_is_not_called_cancelled,
    a_timeout_that_ends_with_code_zero_is_a_timeout,
];

fn lease(length: Duration) -> Lease {
    Lease { deadline: Moment::now().after(length), grace: Duration::from_secs(10) }
}

fn a_lease_that_is_not_renewed_ends_the_tree_before_it_does() {
    let token = Token::new();
    let mut spec = shell(&format!("trap '' TERM; while :; do sleep {}; done", token.0));
    let lease = lease(Duration::from_secs(3));
    spec.lease = Some(lease);
    let exit = run(spec);
    token.assert_gone();
    assert!(Moment::now() < lease.deadline, "the tree outlived the lease");
    assert_eq!((exit.end, exit.status), (End::LeaseLost, Some(Status::Signal(9))));
    assert!(exit.duration > Duration::from_secs(2), "ended far too early: {:?}", exit.duration);
}

fn a_renewed_lease_lets_the_command_finish() {
    let mut spec = shell("sleep 3; echo done");
    spec.lease = Some(lease(Duration::from_millis(1200)));
    let exit = block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        let control = running.control();
        let renewals = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                control.extend(Moment::now().after(Duration::from_millis(1200)));
            }
        });
        let exit = running.wait(|_, _| ()).await;
        renewals.abort();
        exit
    });
    assert_eq!(exit.end, End::Exited(0));
}

/// A message that lay in the pipe while Matins was stopped must not start a new lease.
fn a_renewal_from_the_past_renews_nothing() {
    let token = Token::new();
    let mut spec = shell(&format!("sleep {}", token.0));
    let lease = lease(Duration::from_millis(1500));
    spec.lease = Some(lease);
    let exit = block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        running.control().extend(lease.deadline.before(Duration::from_millis(200)));
        running.wait(|_, _| ()).await
    });
    assert_eq!(exit.end, End::LeaseLost);
    assert!(Moment::now() < lease.deadline);
}

fn matins_stopped_past_its_lease() {
    let token = Token::new();
    let started = Moment::now();
    let text = format!("trap '' TERM; setsid sleep {t} & sleep {t}", t = token.0);
    let matins = second::start(&text, Duration::from_secs(2), Duration::from_secs(1), false);
    token.wait_for(2);
    signal(matins.id() as i32, Signal::STOP);
    eventually("the tree is gone", || token.alive().is_empty());
    let took = Moment::now().since(started);
    assert!(took < Duration::from_millis(2100), "the tree outlived the lease: {took:?}");
    signal(matins.id() as i32, Signal::CONT);
    let output = matins.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "LeaseLost survivors 0\n");
}

fn runner_and_matins_stopped_past_the_lease() {
    let token = Token::new();
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    // If TERM came first, the trap would leave its trace; past the lease nothing may run on.
    let text = format!(
        "trap 'touch {}' TERM; setsid sleep {t} & while :; do sleep {t}; done",
        told.display(),
        t = token.0
    );
    let lease = Duration::from_secs(3);
    let mut matins = second::start(&text, lease, Duration::from_secs(10), false);
    let pids = token.wait_for(2);
    let runner = find_runner(pids[0], matins.id() as i32);
    signal(matins.id() as i32, Signal::STOP);
    signal(runner, Signal::STOP);
    std::thread::sleep(lease + Duration::from_millis(200));
    assert_eq!(token.alive().len(), 2, "nobody was awake to end it");
    let woken = Instant::now();
    signal(runner, Signal::CONT);
    eventually("the tree is gone", || token.alive().is_empty());
    let took = woken.elapsed();
    assert!(took < Duration::from_secs(1), "not the first thing it did: {took:?}");
    assert!(!told.exists(), "TERM and grace past the end of the lease");
    signal(matins.id() as i32, Signal::CONT);
    let mut said = String::new();
    matins.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "LeaseLost survivors 0\n");
    matins.wait().unwrap();
}

/// The child of Matins on the way up from one of its grandchildren.
fn find_runner(mut pid: i32, matins: i32) -> i32 {
    while parent(pid) != matins {
        pid = parent(pid);
    }
    pid
}

fn runner_and_matins_stopped_past_the_timeout() {
    let token = Token::new();
    let mut spec = shell(&format!("sleep {}", token.0));
    spec.timeout = Some(Duration::from_secs(1));
    let waiting = std::thread::spawn(move || run(spec));
    let runner = find_runner(token.wait_for(1)[0], std::process::id() as i32);
    signal(runner, Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(token.alive().len(), 1, "nobody was awake to end it");
    signal(runner, Signal::CONT);
    let woken = Instant::now();
    eventually("the tree is gone", || token.alive().is_empty());
    assert!(woken.elapsed() < Duration::from_secs(1));
    assert_eq!(waiting.join().unwrap().end, End::TimedOut);
}

async fn started(spec: matins_runtime::process::CommandSpec, token: &Token) -> Running {
    let running = runner().spawn(spec).await.unwrap();
    token.wait_for(1);
    running
}

fn cancel_lets_the_command_clean_up() {
    let token = Token::new();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("cleaned");
    let text = format!(
        "trap 'sleep 0.3; echo cleaned > {}; exit 0' TERM; sleep {} & wait",
        trace.display(),
        token.0
    );
    let exit = block_on(async {
        let running = started(shell(&text), &token).await;
        running.control().cancel(None);
        running.wait(|_, _| ()).await
    });
    token.assert_gone();
    assert_eq!((exit.end, exit.status), (End::Cancelled, Some(Status::Code(0))));
    assert_eq!(fs::read_to_string(trace).unwrap(), "cleaned\n");
}

fn a_second_cancel_without_grace_is_immediate() {
    let token = Token::new();
    let text = format!("trap '' TERM; while :; do sleep {}; done", token.0);
    let (exit, took) = block_on(async {
        let running = started(shell(&text), &token).await;
        let control = running.control();
        let task = tokio::spawn(running.wait(|_, _| ()));
        control.cancel(None);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(token.alive().len(), 1, "the grace of ten seconds holds");
        let second = Instant::now();
        control.cancel(Some(Duration::ZERO));
        (task.await.unwrap(), second.elapsed())
    });
    token.assert_gone();
    assert_eq!((exit.end, exit.status), (End::Cancelled, Some(Status::Signal(9))));
    assert!(took < Duration::from_millis(500), "{took:?}");
}

fn what_ended_by_itself_is_not_called_cancelled() {
    let exit = block_on(async {
        let running = runner().spawn(shell("exit 0")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        running.control().cancel(None);
        running.wait(|_, _| ()).await
    });
    assert_eq!(exit.end, End::Exited(0));
}

fn a_timeout_that_ends_with_code_zero_is_a_timeout() {
    let mut spec = shell("trap 'exit 0' TERM; sleep 300 & wait");
    spec.timeout = Some(Duration::from_millis(200));
    let exit = run(spec);
    assert_eq!((exit.end, exit.status), (End::TimedOut, Some(Status::Code(0))));
}
