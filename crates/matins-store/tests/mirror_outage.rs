//! PostgreSQL away, work goes on from Redis alone, each task once, and all of it is in PostgreSQL
//! afterwards.

#![cfg(feature = "redis")]

#[path = "ground/bed.rs"]
mod bed;
#[path = "ground/database.rs"]
mod database;
#[path = "ground/redis.rs"]
mod ground;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_conformance::lab::id;
use matins_core::lifecycle::{Outcome, Trace, later, settle};
use matins_core::limits::Limits;
use matins_core::page::PageRequest;
use matins_core::request::TypeDefaults;
use matins_core::retry::RetryPolicy;
use matins_core::schedule::{
    self, DueSchedule, FirePlan, Look, Maker, ManagedBy, OccurrenceOutcome, Overlap, ScheduleSpec,
};
use matins_core::store::{
    Act, Cancelled, Enqueued, Expect, Queue as _, Records as _, Settled, Store as _, StoreError,
    Timetables as _,
};
use matins_core::task::{NewTask, State, TaskId};
use matins_store::RedisStore;
use matins_store::postgres::PostgresStore;
use matins_testbed::Weather;

use bed::{Bed, LEASE, Node, SOON, due, mirrored, sound, state, until};

#[tokio::test(flavor = "multi_thread")]
async fn mirrored_and_new_tasks_run_in_the_dark_once() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    let keyed = NewTask { execution_key: Some("k".into()), ..due(9) };
    node.store.enqueue(vec![due(1), due(2), keyed], Timestamp::now()).await.unwrap();
    mirrored(&bed, 2).await;
    node.cut_pg().await;
    let unknown = NewTask { kind: "other".into(), ..due(4) };
    let new = vec![due(3), unknown, NewTask { execution_key: Some("n".into()), ..due(5) }];
    let answers = node.store.enqueue(new, Timestamp::now()).await.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Journalled(_))), "{answers:?}");
    let claimed = node.claim(10).await;
    let ids: BTreeSet<TaskId> = claimed.iter().map(|one| one.task.id).collect();
    assert_eq!(ids, [id(1), id(2), id(3)].into());
    assert!(claimed.iter().all(|one| node.store.is_journalled(&one.claim)));
    assert!(claimed.iter().all(|one| one.task.attempt == 1 && one.task.state == State::Running));
    assert_eq!(node.claim(10).await, [], "nothing twice");
    let claims: Vec<_> = claimed.iter().map(|one| one.claim).collect();
    let extended = node.store.extend(&claims, later(Timestamp::now(), LEASE)).await.unwrap();
    assert_eq!((extended.lost, extended.cancel), (vec![], vec![]));
    for one in &claimed[..2] {
        assert_eq!(node.finish(one).await, Settled::Done(State::Completed));
    }
    // One runs on, and becomes an ordinary run.
    node.heal().await;
    let last = &claimed[2];
    assert!(node.store.is_journalled(&last.claim), "its lease stays its own");
    let inspector = bed.inspector().await;
    let row = inspector.task(last.task.id).await.unwrap().unwrap();
    assert_eq!((row.state, row.attempt), (State::Running, 1));
    let extended = node.store.extend(&[last.claim], later(Timestamp::now(), LEASE)).await.unwrap();
    assert_eq!((extended.lost, extended.cancel), (vec![], vec![]));
    assert_eq!(node.finish(last).await, Settled::Done(State::Completed));
    for n in 1..=3 {
        assert_eq!(state(&inspector, n).await, State::Completed, "task {n}");
        assert_eq!(inspector.attempts(id(n)).await.unwrap().len(), 1, "task {n}");
    }
    for n in [4, 5, 9] {
        assert_eq!(state(&inspector, n).await, State::Pending, "task {n} waited");
    }
    until("what waited is run", async || {
        let more = node.claim(10).await;
        for one in &more {
            node.finish(one).await;
        }
        state(&inspector, 9).await == State::Completed
            && state(&inspector, 5).await == State::Completed
    })
    .await;
    assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
    sound(&inspector).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_is_tried_again_in_the_dark() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 1).await;
    node.cut_pg().await;
    let first = node.claim(1).await.remove(0);
    let again = Outcome::Snoozed { at: Timestamp::now() };
    assert_eq!(node.settle(&first, again).await, Settled::Done(State::Pending));
    let mut second = Vec::new();
    until("it is due again", async || {
        second = node.claim(1).await;
        !second.is_empty()
    })
    .await;
    assert_eq!(second[0].task.attempt, 2);
    assert_eq!(node.finish(&first).await, Settled::Fenced, "by its fence");
    assert_eq!(node.finish(&second[0]).await, Settled::Done(State::Completed));
    node.heal().await;
    let inspector = bed.inspector().await;
    let row = inspector.task(id(1)).await.unwrap().unwrap();
    assert_eq!((row.state, row.attempt), (State::Completed, 2));
    assert_eq!(inspector.attempts(id(1)).await.unwrap().len(), 2);
    sound(&inspector).await;
}

/// The danger of it all: one sees only Redis, the other only PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn who_sees_only_redis_and_who_sees_only_postgres_never_run_the_same() {
    let mut bed = Bed::new().await;
    bed.window = Duration::from_secs(14);
    let (dark, other) = (bed.node("dark").await, bed.node("other").await);
    until("both hold leases", async || dark.store.mirrors() && other.store.mirrors()).await;
    let tasks = (1..=20).map(due).collect();
    other.store.enqueue(tasks, Timestamp::now()).await.unwrap();
    mirrored(&bed, 20).await;
    dark.cut_pg().await;
    other.to_redis.set(Weather::Refused);
    let mut ran = 0;
    let mut held = Vec::new();
    let began = Instant::now();
    // Each claims whatever it gets, and runs it for a while; the witness sees whether two have one.
    while ran < 20 {
        assert!(began.elapsed() < SOON, "only {ran} ran");
        for node in [&dark, &other] {
            for one in node.claim(2).await {
                held.push((node, one, Instant::now()));
            }
        }
        let (over, on): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(.., since)| since.elapsed() > Duration::from_millis(900));
        held = on;
        for (node, one, _) in over {
            assert_eq!(node.finish(&one).await, Settled::Done(State::Completed));
            ran += 1;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let by_other = began.elapsed();
    dark.heal().await;
    other.heal().await;
    let inspector = bed.inspector().await;
    for n in 1..=20 {
        assert_eq!(state(&inspector, n).await, State::Completed, "task {n} after {by_other:?}");
    }
    assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
    sound(&inspector).await;
}

/// A node without PostgreSQL beside one that has both: that one goes on with what is surely free.
#[tokio::test(flavor = "multi_thread")]
async fn a_connected_node_takes_only_what_its_take_finds() {
    let bed = Bed::new().await;
    let (dark, other) = (bed.node("dark").await, bed.node("other").await);
    let keyed = NewTask { execution_key: Some("k".into()), ..due(3) };
    other.store.enqueue(vec![due(1), due(2), keyed], Timestamp::now()).await.unwrap();
    mirrored(&bed, 2).await;
    dark.cut_pg().await;
    let first = dark.claim(1).await.remove(0);
    let mut second = Vec::new();
    until("the other goes on", async || {
        second.extend(other.claim(5).await);
        !second.is_empty()
    })
    .await;
    let ids: Vec<TaskId> = second.iter().map(|one| one.task.id).collect();
    assert_eq!(ids, [if first.task.id == id(1) { id(2) } else { id(1) }]);
    assert_eq!(other.claim(5).await, [], "the rest waits");
    let act = Act { who: "test".to_owned(), reason: None, at: Timestamp::now() };
    let refused = other.store.cancel(&[first.task.id], &act).await;
    match refused {
        // Its claim may have been replayed already: then it is asked to end.
        Ok(answers) => assert!(matches!(answers[0], Cancelled::Requested(_)), "{answers:?}"),
        Err(StoreError::Unavailable(_)) => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(dark.finish(&first).await, Settled::Done(State::Completed));
    assert_eq!(other.finish(&second[0]).await, Settled::Done(State::Completed));
    dark.heal().await;
    until("the rest is run", async || !other.claim(5).await.is_empty()).await;
}

/// The spool alone, and the stream alone, bring everything back.
#[tokio::test(flavor = "multi_thread")]
async fn either_copy_is_enough() {
    for lost in ["redis", "node"] {
        let bed = Bed::new().await;
        let node = bed.node("a").await;
        node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
        mirrored(&bed, 1).await;
        node.cut_pg().await;
        node.store.enqueue(vec![due(2)], Timestamp::now()).await.unwrap();
        let claimed = node.claim(5).await;
        assert_eq!(claimed.len(), 2, "{lost}");
        for one in &claimed {
            assert_eq!(node.finish(one).await, Settled::Done(State::Completed));
        }
        let inspector = bed.inspector().await;
        match lost {
            "redis" => {
                bed.redis.ask(&["flushall"]);
                node.heal().await;
            }
            _ => {
                node.store.close().await.unwrap();
                drop(node);
                std::fs::remove_file(bed.folder.path().join("a.journal")).unwrap();
                let next = bed.node_with("b", Some(ground::mirror("b", &["t"]))).await;
                until("the stream is replayed", async || {
                    bed.redis.ask(&["xlen", "matins:journal"]) == "0"
                })
                .await;
                next.store.close().await.unwrap();
            }
        }
        for n in 1..=2 {
            assert_eq!(state(&inspector, n).await, State::Completed, "{lost} lost, task {n}");
        }
        sound(&inspector).await;
    }
}

/// A node that dies in the dark: others wait for its outage lease, then judge its run.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_nodes_run_is_judged_when_its_outage_lease_is_over() {
    let mut bed = Bed::new().await;
    bed.window = Duration::from_secs(12);
    let (dark, other) = (bed.node("dark").await, bed.node("other").await);
    other.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 1).await;
    let granted = Instant::now();
    dark.cut_pg().await;
    let claimed = dark.claim(1).await;
    assert_eq!(claimed.len(), 1);
    dark.to_redis.set(Weather::Refused);
    bed.witness.lock().unwrap().running.clear();
    let mut again = Vec::new();
    until("it is run again", async || {
        for lapsed in other.store.lapsed(Timestamp::now(), 10).await.unwrap() {
            let text = "gone";
            let error =
                matins_core::task::TaskError::new(matins_core::task::ErrorClass::WorkerLost, text);
            let outcome = Outcome::Lost { error };
            let policy = RetryPolicy::default();
            let now = Timestamp::now();
            let item = settle(&lapsed.claimed, outcome, Trace::default(), &policy, now, 0.0);
            other.store.settle(vec![item]).await.unwrap();
        }
        again = other.claim(1).await;
        !again.is_empty()
    })
    .await;
    let waited = granted.elapsed();
    assert!(waited > Duration::from_secs(6), "after {waited:?}");
    assert_eq!(again[0].task.attempt, 2);
    assert_eq!(other.finish(&again[0]).await, Settled::Done(State::Completed));
}

/// One that is configured otherwise must not decide beside those that mirror.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_mirror_is_refused_while_others_may_be_dark() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    let plain = bed.node_with("plain", None).await;
    let refused = plain.store.claim(plain.request(1)).await;
    let Err(StoreError::Broken(text)) = refused else { panic!("{refused:?}") };
    assert!(text.contains("redis_mirror"), "{text}");
    node.store.close().await.unwrap();
    let claimed = plain.claim(1).await;
    assert_eq!(claimed.len(), 1, "nobody can be dark any more");
}

/// Nothing is run from a Redis that is another one by now, or that may forget it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_from_another_redis() {
    let mut bed = Bed::new().await;
    let node = bed.node("a").await;
    node.store.enqueue(vec![due(1), due(2)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 2).await;
    node.cut_pg().await;
    let claimed = node.claim(1).await;
    assert_eq!(claimed.len(), 1);
    bed.redis.kill();
    bed.redis.start_again();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.claim(1).await, [], "it may have forgotten a claim");
    // The run's claim cannot be renewed: its runner ends it. When PostgreSQL is back, it is judged.
    bed.witness.lock().unwrap().running.clear();
    node.to_pg.set(Weather::Fine);
    until("its claim is given up", async || {
        match node.store.extend(&[claimed[0].claim], later(Timestamp::now(), LEASE)).await {
            Ok(extended) => extended.lost == [claimed[0].claim.id],
            Err(_) => false,
        }
    })
    .await;
    assert_eq!(node.finish(&claimed[0]).await, Settled::Fenced);
    node.heal().await;
    let inspector = bed.inspector().await;
    until("both are run", async || {
        let _ = node.store.beat(&node.entry()).await;
        for lapsed in node.store.lapsed(Timestamp::now(), 10).await.unwrap() {
            node.settle(&lapsed.claimed, Outcome::Released { at: Timestamp::now() }).await;
        }
        for one in node.claim(5).await {
            node.finish(&one).await;
        }
        state(&inspector, 1).await == State::Completed
            && state(&inspector, 2).await == State::Completed
    })
    .await;
    sound(&inspector).await;
}

fn plan(due: &DueSchedule) -> FirePlan {
    let limits = Limits::default();
    let defaults = TypeDefaults { pool: "default".into(), concurrency_key: None };
    let prepared = due.state.spec.prepare(due.state.anchor, &limits).unwrap();
    let look = Look { now: Timestamp::now(), frozen: false, fired_before: &[] };
    let mut fresh = || TaskId(uuid::Uuid::new_v4());
    let mut maker = Maker { limits: &limits, defaults: &defaults, fresh: &mut fresh };
    schedule::decide(due, &prepared, &look, &mut maker)
}

impl Node {
    /// Fires what is due; how many plans were applied.
    async fn fire(&self) -> usize {
        let now = Timestamp::now();
        let Ok((due, _)) = self.store.due(now, 10).await else { return 0 };
        let plans: Vec<FirePlan> = due.iter().map(plan).collect();
        match self.store.fire(plans, now).await {
            Ok(applied) => applied.into_iter().filter(|applied| *applied).count(),
            Err(StoreError::Unavailable(_)) => 0,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// Runs what there is to its end.
    async fn work(&self) {
        for one in self.claim(5).await {
            self.finish(&one).await;
        }
    }
}

async fn put_schedule(store: &RedisStore, spec: ScheduleSpec) {
    let uid = uuid::Uuid::new_v4();
    let now = Timestamp::now();
    let state = schedule::create(uid, spec, ManagedBy::Api, &Limits::default(), now).unwrap();
    assert_eq!(store.put_schedules(vec![(Expect::Absent, state)]).await.unwrap(), [true]);
}

/// Marks that fired, in order, with their tasks.
async fn fired(store: &PostgresStore, name: &str) -> Vec<(Timestamp, TaskId)> {
    let page = PageRequest { limit: 200, cursor: None };
    let found = store.occurrences(Some(name), &page).await.unwrap().items;
    let fired = found.into_iter().filter(|one| one.outcome == OccurrenceOutcome::Fired);
    let mut fired: Vec<_> = fired.map(|one| (one.time, one.task_id.unwrap())).collect();
    fired.sort();
    fired
}

async fn balanced(store: &PostgresStore, name: &str) {
    let balance = store.schedule(name).await.unwrap().unwrap().state.balance;
    let decided = balance.fired + balance.coalesced + balance.skipped + balance.missed;
    assert_eq!(balance.expected, decided, "{name}: {balance:?}");
    let recorded = fired(store, name).await.len() as u64;
    assert_eq!(balance.fired, recorded, "{name}: {balance:?}");
}

/// Two nodes in the dark fire the same schedule by turns, and a third that is connected in between.
/// Their spools come back in the wrong order, without the stream.
#[tokio::test(flavor = "multi_thread")]
async fn each_mark_fires_once_in_the_dark_whoever_does_it() {
    for stream in [true, false] {
        let bed = Bed::new().await;
        let nodes = [bed.node("a").await, bed.node("b").await];
        let connected = bed.node("c").await;
        let every = |name: &str, overlap| ScheduleSpec {
            overlap,
            ..ScheduleSpec::new(name, "* * * * * *", "t")
        };
        put_schedule(&connected.store, every("all", Overlap::Allow)).await;
        put_schedule(&connected.store, every("one", Overlap::Skip)).await;
        let keyed = Some("{{ occurrence.key }}".to_owned());
        let keyed = ScheduleSpec { execution_key: keyed, ..every("keyed", Overlap::Allow) };
        put_schedule(&connected.store, keyed).await;
        until("it fires while all is well", async || {
            connected.fire().await;
            connected.work().await;
            let ends = fired(&bed.inspector().await, "one").await.len();
            ends >= 2 && bed.redis.ask(&["hlen", "matins:mirror:holders"]) == "1"
        })
        .await;
        until("the marks are mirrored", async || {
            bed.redis.ask(&["hlen", "matins:mirror:tasks"]) == "2"
        })
        .await;
        for node in &nodes {
            node.cut_pg().await;
        }
        let inspector = bed.inspector().await;
        let before = fired(&inspector, "all").await.len();
        let began = Instant::now();
        let mut by = [0, 0];
        while began.elapsed() < Duration::from_secs(6) {
            for (node, by) in nodes.iter().zip(&mut by) {
                *by += node.fire().await;
                node.work().await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(by[0] + by[1] >= 8 && by[0] > 0, "{by:?}");
        // Who is connected has what is surely free; then nobody else has it.
        connected.fire().await;
        connected.work().await;
        if !stream {
            bed.redis.ask(&["del", "matins:journal", "matins:journal:tasks"]);
        }
        for node in nodes.iter().rev() {
            node.heal().await;
        }
        until("all that was started has ended", async || {
            for node in &nodes {
                node.work().await;
            }
            connected.work().await;
            let mut open = false;
            for (_, task) in fired(&inspector, "all").await {
                let task = inspector.task(task).await.unwrap().expect("it is there");
                open |= task.state != State::Completed;
            }
            !open
        })
        .await;
        let marks: Vec<i64> =
            fired(&inspector, "all").await.iter().map(|(at, _)| at.as_second()).collect();
        let last = *marks.last().unwrap();
        assert_eq!(marks, (marks[0]..=last).collect::<Vec<_>>(), "stream kept: {stream}");
        assert!(marks.len() >= before + 5, "{marks:?}");
        for name in ["all", "one"] {
            balanced(&inspector, name).await;
        }
        assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
        until("it fires by the database again", async || connected.fire().await > 0).await;
        sound(&inspector).await;
    }
}

/// A task that holds its schedule and is not known to have ended holds it in the dark, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_overlap_is_kept_in_the_dark() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    put_schedule(&node.store, ScheduleSpec::new("one", "* * * * * *", "t")).await;
    let mut first = Vec::new();
    until("the first is claimed", async || {
        node.fire().await;
        first = node.claim(1).await;
        !first.is_empty()
    })
    .await;
    until("its mark is mirrored", async || bed.redis.ask(&["hlen", "matins:mirror:tasks"]) == "1")
        .await;
    node.cut_pg().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    node.fire().await;
    assert_eq!(node.claim(5).await, [], "the first one holds");
    assert_eq!(node.finish(&first[0]).await, Settled::Done(State::Completed));
    let mut second = Vec::new();
    until("the next one fires when it has ended", async || {
        node.fire().await;
        second = node.claim(5).await;
        !second.is_empty()
    })
    .await;
    assert_eq!(second.len(), 1);
    node.fire().await;
    assert_eq!(node.claim(5).await, [], "the second one holds");
    assert_eq!(node.finish(&second[0]).await, Settled::Done(State::Completed));
    node.heal().await;
    let inspector = bed.inspector().await;
    balanced(&inspector, "one").await;
    sound(&inspector).await;
}

/// Whatever somebody else makes of the last fence: none is handed out twice.
#[tokio::test(flavor = "multi_thread")]
async fn no_fence_of_the_dark_is_met_again() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    let words = ["nan", "inf", "-inf", "-1", "0", "x", "9223372036854775000", "1e300"];
    let tasks = (1..=words.len() as u128 + 2).map(due).collect();
    node.store.enqueue(tasks, Timestamp::now()).await.unwrap();
    mirrored(&bed, words.len() + 2).await;
    node.cut_pg().await;
    let mut fences = vec![node.claim(1).await[0].claim.fence];
    for word in words {
        bed.redis.ask(&["set", "matins:mirror:fence", word]);
        fences.push(node.claim(1).await[0].claim.fence);
    }
    bed.redis.ask(&["del", "matins:mirror:fence"]);
    fences.push(node.claim(1).await[0].claim.fence);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

/// G12, in the dark: tasks that nobody there runs stand before one that somebody does.
#[tokio::test(flavor = "multi_thread")]
async fn who_runs_a_type_finds_it_behind_many_of_others() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    for from in (100..3_100).step_by(100) {
        let ghost = |n| NewTask { kind: "ghost".into(), ..due(n) };
        node.store
            .enqueue((from..from + 100).map(ghost).collect(), Timestamp::now())
            .await
            .unwrap();
    }
    node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 3_001).await;
    node.cut_pg().await;
    let claimed = node.claim(5).await;
    assert_eq!(claimed.iter().map(|one| one.task.id).collect::<Vec<_>>(), [id(1)]);
}

/// Every node finds all that the others journalled, and brings it in with its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_journal_comes_in_once() {
    const EACH: u128 = 300;
    let bed = Bed::new().await;
    let nodes = [bed.node("a").await, bed.node("b").await, bed.node("c").await];
    until("all may work in the dark", async || nodes.iter().all(|node| node.store.mirrors())).await;
    for (nth, node) in (0..).zip(&nodes) {
        node.cut_pg().await;
        let new = (1..=EACH).map(|n| due(nth * EACH + n)).collect();
        node.store.enqueue(new, Timestamp::now()).await.unwrap();
    }
    let (all, began, mut ran) = (EACH * nodes.len() as u128, Instant::now(), 0);
    while ran < all {
        assert!(began.elapsed() < SOON, "only {ran} ran");
        for node in &nodes {
            for one in node.claim(50).await {
                assert_eq!(node.finish(&one).await, Settled::Done(State::Completed));
                ran += 1;
            }
        }
    }
    let began = Instant::now();
    for node in &nodes {
        node.to_pg.set(Weather::Fine);
    }
    for node in &nodes {
        node.heal().await;
    }
    println!("{} entries are in PostgreSQL after {:?}", 3 * all, began.elapsed());
    let inspector = bed.inspector().await;
    for n in 1..=all {
        assert_eq!(state(&inspector, n).await, State::Completed, "task {n}");
        assert_eq!(inspector.attempts(id(n)).await.unwrap().len(), 1, "task {n}");
    }
    assert!(bed.witness.lock().unwrap().runs.values().all(|runs| *runs == 1));
    sound(&inspector).await;
}

/// Whoever can write to Redis and has no key brings nothing in, and holds nothing up.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_into_redis_does_no_harm() {
    let bed = Bed::new().await;
    let node = bed.node("a").await;
    node.store.enqueue(vec![due(1)], Timestamp::now()).await.unwrap();
    mirrored(&bed, 1).await;
    let eval = |script: &str| bed.redis.ask(&["eval", script, "0"]);
    eval(r"redis.call('XADD', 'matins:journal', '*', 'entry', '\255\254')");
    eval(r"redis.call('SADD', 'matins:mirror:dark', '\255')");
    until("no entry is put aside", async || bed.redis.ask(&["xlen", "matins:journal"]) == "0")
        .await;
    node.cut_pg().await;
    bed.redis.ask(&["set", "matins:mirror:fence", "9223372036854775000"]);
    let known = bed.redis.ask(&["hget", "matins:mirror:tasks", &id(1).to_string()]);
    let forged = known.replace(&id(1).to_string(), &id(2).to_string());
    bed.redis.ask(&["hset", "matins:mirror:tasks", &id(2).to_string(), &forged]);
    let index = bed.redis.ask(&["--raw", "hget", "matins:mirror:index", &id(1).to_string()]);
    bed.redis.ask(&["hset", "matins:mirror:index", &id(2).to_string(), &index]);
    bed.redis.ask(&["zadd", "matins:mirror:line:default", "0", &id(2).to_string()]);
    let claimed = node.claim(5).await;
    let ids: Vec<TaskId> = claimed.iter().map(|one| one.task.id).collect();
    assert_eq!(ids, [id(1)], "the other one is forged");
    assert_eq!(node.finish(&claimed[0]).await, Settled::Done(State::Completed));
    node.heal().await;
    let inspector = bed.inspector().await;
    assert_eq!(state(&inspector, 1).await, State::Completed);
    assert_eq!(inspector.task(id(2)).await.unwrap(), None);
    let keys = [
        "mirror:claims",
        "mirror:leases",
        "mirror:later",
        "mirror:line:default",
        "mirror:holding",
        "mirror:index",
        "mirror:tasks",
        "mirror:epoch",
        "journal",
    ];
    for (n, key) in (10..).zip(keys) {
        bed.redis.ask(&["del", &format!("matins:{key}")]);
        bed.redis.ask(&["set", &format!("matins:{key}"), "x"]);
        node.store.enqueue(vec![due(n)], Timestamp::now()).await.unwrap();
        until(key, async || {
            node.work().await;
            state(&inspector, n).await == State::Completed
        })
        .await;
    }
    sound(&inspector).await;
}
