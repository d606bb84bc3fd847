//! Several nodes at once on one database: no task has two claims, no key completes twice, limits
//! hold over all nodes, and what is left behind is sound.

#![cfg(feature = "postgres")]

#[path = "ground/database.rs"]
mod database;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use matins_conformance::{Ground as _, lab};
use matins_core::Json;
use matins_core::lifecycle::{Outcome, Trace, settle};
use matins_core::store::{
    Act, ClaimRequest, Enqueued, SettingChange, Settled, Store, TypeLimit, Types, Worker,
};
use matins_core::task::{Claimed, NewTask, State, TaskId, WorkerId};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use uuid::Uuid;

const NODES: usize = 4;
const HANDS: usize = 3;
const TIME: Duration = Duration::from_secs(6);
const MOST_SCANS: usize = 3;

/// What an outside witness has seen.
#[derive(Default)]
struct Seen {
    /// Tasks that run, with what limits them.
    running: HashMap<TaskId, (String, Option<String>)>,
    accepted: usize,
    /// Keys that were completed.
    completed: HashMap<String, usize>,
}

impl Seen {
    fn starts(&mut self, claimed: &Claimed) {
        let task = &claimed.task;
        let lane = (task.kind.to_string(), task.concurrency_key.as_deref().map(str::to_owned));
        let before = self.running.insert(task.id, lane.clone());
        assert!(before.is_none(), "{} runs twice", task.id);
        if lane.1.is_some() {
            let alike = self.running.values().filter(|other| **other == lane).count();
            assert!(alike <= 1, "{alike} tasks of the key {lane:?} run");
        }
        let scans = self.running.values().filter(|(kind, _)| kind == "scan").count();
        assert!(scans <= MOST_SCANS, "{scans} scans run");
    }
}

struct Hand {
    store: Arc<dyn Store>,
    worker: WorkerId,
    dice: StdRng,
    seen: Arc<Mutex<Seen>>,
    ids: Arc<Mutex<Vec<TaskId>>>,
}

impl Hand {
    async fn work(mut self) {
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            match self.dice.random_range(0..10) {
                0..=3 => self.offer().await,
                4..=8 => self.take().await,
                _ => self.meddle().await,
            }
        }
    }

    fn task(&mut self) -> NewTask {
        let now = Timestamp::now();
        let kind = ["sync", "mail", "scan"][self.dice.random_range(0..3)];
        let late = Duration::from_millis(self.dice.random_range(0..300));
        let mut task = NewTask::new(TaskId(Uuid::now_v7()), kind, Json::string("x"), now + late);
        task.pool = ["default", "io"][self.dice.random_range(0..2)].into();
        task.priority = self.dice.random_range(-1..2);
        if self.dice.random_range(0..3) == 0 {
            task.execution_key = Some(format!("k{}", self.dice.random_range(0..200)).into());
        }
        if self.dice.random_range(0..4) == 0 {
            task.concurrency_key = Some(format!("c{}", self.dice.random_range(0..4)).into());
        }
        task
    }

    async fn offer(&mut self) {
        let count = [1, 1, 5, 40][self.dice.random_range(0..4)];
        let tasks: Vec<NewTask> = (0..count).map(|_| self.task()).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
        let answers = self.store.enqueue(tasks, Timestamp::now()).await.expect("enqueue");
        let created = answers.iter().zip(ids).filter(|(answer, _)| **answer == Enqueued::Created);
        let created: Vec<TaskId> = created.map(|(_, id)| id).collect();
        self.seen.lock().unwrap().accepted += created.len();
        self.ids.lock().unwrap().extend(created);
    }

    async fn take(&mut self) {
        let max = [1, 3, 30][self.dice.random_range(0..3)];
        let request = ClaimRequest {
            worker: self.worker.clone(),
            pool: [None, Some("default".into()), Some("io".into())][self.dice.random_range(0..3)]
                .clone(),
            types: Types::Any,
            ids: None,
            max,
            token: self.dice.random(),
            repeated: false,
            lease_until: None,
            now: Timestamp::now(),
        };
        let batch = self.store.claim(request).await.expect("claim");
        {
            let mut seen = self.seen.lock().unwrap();
            batch.claimed.iter().for_each(|claimed| seen.starts(claimed));
        }
        self.end(batch.claimed).await;
    }

    async fn end(&mut self, claimed: Vec<Claimed>) {
        if claimed.is_empty() {
            return;
        }
        let now = Timestamp::now();
        let policy = lab::policy();
        let mut items = Vec::new();
        for claimed in &claimed {
            let outcome = match self.dice.random_range(0..10) {
                0 => lab::failure("x"),
                1 => lab::hopeless("x"),
                2 => Outcome::Released { at: now },
                _ => lab::done("done"),
            };
            items.push(settle(claimed, outcome, Trace::default(), &policy, now, 0.0));
        }
        // Nobody is seen to run whose end may have been written.
        {
            let mut seen = self.seen.lock().unwrap();
            for claimed in &claimed {
                seen.running.remove(&claimed.task.id);
            }
        }
        let answers = self.store.settle(items).await.expect("settle");
        let mut seen = self.seen.lock().unwrap();
        for (claimed, answer) in claimed.iter().zip(answers) {
            let Settled::Done(state) = answer else { panic!("{} is fenced", claimed.task.id) };
            if let (State::Completed, Some(key)) = (state, &claimed.task.execution_key) {
                *seen.completed.entry(format!("{}/{key}", claimed.task.kind)).or_default() += 1;
            }
        }
    }

    async fn meddle(&mut self) {
        let act = Act { who: "ann".to_owned(), reason: None, at: Timestamp::now() };
        let known = self.ids.lock().unwrap().len();
        let some: Vec<TaskId> = (0..3.min(known))
            .map(|_| self.ids.lock().unwrap()[self.dice.random_range(0..known)])
            .collect();
        match self.dice.random_range(0..3) {
            0 => drop(self.store.cancel(&some, &act).await.expect("cancel")),
            1 => drop(self.store.retry(&some, None, &act).await.expect("retry")),
            _ => drop(self.store.stats(Timestamp::now()).await.expect("stats")),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_nodes_share_the_work() {
    let (first, ground) = database::open(NODES - 1).await;
    let mut stores = vec![first.clone()];
    stores.extend(ground.doors());
    let limit = TypeLimit { concurrency: Some(MOST_SCANS as u32), ..lab::limit("scan") };
    let change = SettingChange::Limits(vec![limit]);
    first.change_setting(change, None).await.expect("change_setting");
    let (seen, ids) = (Arc::<Mutex<Seen>>::default(), Arc::<Mutex<Vec<TaskId>>>::default());
    let mut hands = tokio::task::JoinSet::new();
    for (node, store) in stores.iter().enumerate() {
        for hand in 0..HANDS {
            let name = format!("n{node}-{hand}");
            let now = Timestamp::now();
            let lease_until = now + Duration::from_secs(3_600);
            let worker =
                Worker { started_at: now, seen_at: now, ..lab::worker(&name, lease_until) };
            store.register(worker).await.expect("register");
            let hand = Hand {
                store: store.clone(),
                worker: WorkerId(name.into()),
                dice: StdRng::seed_from_u64((node * 10 + hand) as u64),
                seen: seen.clone(),
                ids: ids.clone(),
            };
            hands.spawn(hand.work());
        }
    }
    while let Some(done) = hands.join_next().await {
        done.expect("a hand");
    }
    ground.inspect().await;
    let seen = seen.lock().unwrap();
    let twice: BTreeSet<_> = seen.completed.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "completed more than once: {twice:?}");
    assert!(seen.accepted > 200, "only {} tasks", seen.accepted);
    println!("{} tasks accepted, {} keys completed", seen.accepted, seen.completed.len());
}
