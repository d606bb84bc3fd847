//! One stuck pool and a busy machine delay nobody else. One scenario at a time: they measure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::seconds_of;
use matins_e2e::clock::unix_now;
use matins_e2e::process;
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, Value, json};

/// A pool full of hung tasks, and a backlog behind them.
#[test]
fn neighbours_do_not_notice() {
    stuck_pool();
    spinning_neighbours();
}

fn stuck_pool() {
    let server = Server::with(
        "task_pools: {stuck: {max_workers: 4, task_types: [hang]}, \
         quick: {max_workers: 8, task_types: [quick]}}\n\
         tasks: {hang: {executor: command, command: [sleep, \"1000\"], timeout: 1h}, \
         quick: {executor: command, command: [\"true\"]}}\n\
         schedules: {tick: {schedule: \"* * * * * *\", type: quick}, \
         stuck_tick: {schedule: \"* * * * * *\", type: hang, overlap: allow}}\n",
    );
    let api = server.api();
    // What the machine needs for it now, with nobody in the way.
    let alone: Vec<f64> = (0..45).map(|_| enqueue_to_finish(&api)).collect();
    let alone = steady_p95(&alone);
    let hung: Vec<Value> = (0..60).map(|_| json!({"type": "hang"})).collect();
    api.post("/tasks/batch", &json!(hung)).expect(200);
    thread::sleep(seconds(1.5));
    let begin = unix_now();

    let enough = AtomicBool::new(false);
    let (took, answers) = thread::scope(|scope| {
        let reader = scope.spawn(|| answer_times(&api, &enough));
        let took: Vec<f64> = (0..120).map(|_| enqueue_to_finish(&api)).collect();
        // Long enough for ten marks of the clock.
        thread::sleep(seconds((begin + 11.0 - unix_now()).max(0.0)));
        enough.store(true, Ordering::Relaxed);
        (took, reader.join().expect("the reader ends"))
    });
    let end = unix_now();
    let (p50, p95) = (quantile(&took, 0.5), steady_p95(&took));
    let said = format!("p50 {:.0} ms, p95 {:.0} ms", p50 * 1e3, p95 * 1e3);
    eprintln!("enqueue to finish: {said}; alone p95 {:.0} ms", alone * 1e3);
    assert!(p95 < 0.1 + alone, "{said}, {:.0} ms alone", alone * 1e3);
    let (p50, p95) = (quantile(&answers, 0.5), steady_p95(&answers));
    eprintln!("answers: p50 {:.1} ms, p95 {:.1} ms, n {}", p50 * 1e3, p95 * 1e3, answers.len());
    assert!(p95 < 0.05, "p95 of API answers is {:.0} ms", p95 * 1e3);

    // B04: what waits in one pool does not make the marks of another late.
    for occurrence in api.occurrences("tick") {
        let time = |field: &str| seconds_of(occurrence[field].as_str().expect("a time"));
        let lag = time("fired_at") - time("time");
        assert!((0.0..1.0).contains(&lag), "fired {lag} s late: {occurrence}");
    }
    for schedule in ["tick", "stuck_tick"] {
        let mut marks: Vec<i64> = api
            .occurrences(schedule)
            .iter()
            .filter(|occurrence| occurrence["outcome"] == "fired")
            .map(|occurrence| seconds_of(occurrence["time"].as_str().expect("time")) as i64)
            .collect();
        marks.sort_unstable();
        for mark in begin.ceil() as i64..end.floor() as i64 {
            assert!(marks.contains(&mark), "{schedule} did not fire at {mark}: {marks:?}");
        }
    }
    let waiting = api.list("type=hang&state=pending");
    let why = api.get(&format!("/tasks/{}/why", waiting[0].id())).expect(200).json();
    assert_eq!(why["reason"], "pool_full", "{why}");
    assert_eq!(api.health().0, 200);
    assert_eq!(api.metric("matins_pool_busy", "stuck"), Some(4.0));
}

/// The median of the p95 of three stretches: one hiccup of the machine is not what is judged.
fn steady_p95(samples: &[f64]) -> f64 {
    let stretches = samples.chunks(samples.len().div_ceil(3).max(1));
    let mut p95: Vec<f64> = stretches.map(|stretch| quantile(stretch, 0.95)).collect();
    p95.sort_by(f64::total_cmp);
    p95[p95.len() / 2]
}

/// From just before the request until the recorded end, in seconds.
fn enqueue_to_finish(api: &Api) -> f64 {
    let begin = unix_now();
    let id = api.enqueue(&json!({"type": "quick"})).id().to_owned();
    let end = begin + 5.0;
    loop {
        thread::sleep(Duration::from_millis(30));
        let task = api.task(&id);
        if task.ended() {
            assert_eq!(task.state(), "completed", "{:#}", task.0);
            return task.time("finished_at") - begin;
        }
        assert!(unix_now() < end, "not done after 5 s: {:#}", task.0);
    }
}

fn answer_times(api: &Api, enough: &AtomicBool) -> Vec<f64> {
    let mut times = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        for path in ["/tasks?limit=20", "/status", "/schedules", "/pools"] {
            let begin = Instant::now();
            api.get(path).expect(200);
            times.push(begin.elapsed().as_secs_f64());
        }
        thread::sleep(Duration::from_millis(40));
    }
    times
}

fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// B02: tasks that spin on every core for several leases. None is lost, none is stolen.
fn spinning_neighbours() {
    let server = Server::with("lease: 3s\n");
    let api = server.api();
    let spin = server.witness.shell("timeout 10 sh -c 'while :; do :; done'; true");
    let ids: Vec<String> =
        (0..8).map(|_| api.shell(&spin, &json!({"max_retries": 0})).id().to_owned()).collect();
    for id in &ids {
        server.witness.wait_begin(id, 1, seconds(10.0));
    }
    // An idle worker elsewhere would take whatever lost its lease.
    let thief = json!({"worker": "thief", "types": ["command"], "max": 10, "wait": 1});
    let end = Instant::now() + seconds(9.0);
    while Instant::now() < end {
        let got = api.post("/workers/claim", &thief).expect(200).json();
        assert_eq!(got["tasks"], json!([]), "a live task was taken away");
    }
    for id in &ids {
        let task = api.wait_end(id, seconds(30.0));
        assert_eq!(task.state(), "completed", "{:#}", task.0);
        assert_eq!((task.number("attempt"), task.number("losses")), (1, 0), "{:#}", task.0);
    }
    assert_eq!((server.witness.begun(), server.witness.ended()), (8, 8));
    assert!(process::alive(server.pid()));
}
