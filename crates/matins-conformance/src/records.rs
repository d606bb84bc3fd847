//! What people look at: lists in pages, figures, reasons, and what is kept for them.

use jiff::Timestamp;
use matins_core::Json;
use matins_core::dead_letter::DeadLetterFilter;
use matins_core::operation::{Operation, OperationKind, OperationState};
use matins_core::page::{PAGE_MAX, PageRequest};
use matins_core::schedule::BackfillMode;
use matins_core::store::{
    AuditEntry, ClaimRequest, Frozen, Order, PoolChange, PoolSetting, SettingChange, Settings,
    StoreError, TaskFilter, Token, TypeLimit, Types, Worker,
};
use matins_core::task::{NewTask, State, TaskId};
use uuid::Uuid;

use crate::lab::{
    Lab, act, at, done, due_at, every, first_page, held, hopeless, id, in_pool, keyed, limit, loss,
    of_kind, origin, plan, request, schedule, task, with_concurrency_key, worker,
};

async fn found(lab: &Lab, filter: TaskFilter) -> Vec<TaskId> {
    let mut found: Vec<_> = lab.matching(&filter).await.iter().map(|task| task.id).collect();
    found.sort();
    found
}

pub async fn what_was_accepted_last_is_listed_first(lab: Lab) {
    lab.accept([5, 1, 9, 3].map(task)).await;
    lab.run_one(done("x"), 1).await;
    let listed: Vec<_> = lab.all_tasks().await.iter().map(|task| task.id).collect();
    assert_eq!(listed, [3, 9, 1, 5].map(id));
}

pub async fn tasks_are_found_by_each_field(lab: Lab) {
    let origin = Some(origin(&schedule("nightly", 0), "label", 0));
    lab.accept([
        of_kind(1, "report"),
        in_pool(2, "io"),
        NewTask { tags: vec!["alpha".to_owned(), "beta".to_owned()], ..task(3) },
        NewTask { origin, ..task(4) },
        keyed(5, "orders-2024-01-15"),
        NewTask { kind: "other".into(), ..keyed(6, "orders-2024-01-15") },
    ])
    .await;
    let all = TaskFilter::default;
    let states = |states: &[State]| TaskFilter { states: states.to_vec(), ..all() };
    lab.take_with(ClaimRequest { ids: Some(vec![id(2)]), ..request(1, 1) }).await;
    lab.cancel_one(id(3), 1).await;
    let cases = [
        (all(), vec![1, 2, 3, 4, 5, 6]),
        (states(&[State::Running]), vec![2]),
        (states(&[State::Running, State::Cancelled]), vec![2, 3]),
        (states(&[State::Pending]), vec![1, 4, 5, 6]),
        (states(&[State::Failed]), vec![]),
        (TaskFilter { kind: Some("report".to_owned()), ..all() }, vec![1]),
        (TaskFilter { kind: Some("repo".to_owned()), ..all() }, vec![]),
        (TaskFilter { pool: Some("io".to_owned()), ..all() }, vec![2]),
        (TaskFilter { tag: Some("beta".to_owned()), ..all() }, vec![3]),
        (TaskFilter { tag: Some("bet".to_owned()), ..all() }, vec![]),
        (TaskFilter { schedule: Some("nightly".to_owned()), ..all() }, vec![4]),
        (TaskFilter { execution_key: Some("orders-2024-01-15".to_owned()), ..all() }, vec![5, 6]),
        (
            TaskFilter {
                execution_key: Some("orders-2024-01-15".to_owned()),
                kind: Some("sync".to_owned()),
                ..all()
            },
            vec![5],
        ),
        (TaskFilter { pool: Some("io".to_owned()), ..states(&[State::Pending]) }, vec![]),
        (TaskFilter { pool: Some("never".to_owned()), ..all() }, vec![]),
    ];
    for (filter, expected) in cases {
        let expected: Vec<_> = expected.into_iter().map(id).collect();
        assert_eq!(found(&lab, filter.clone()).await, expected, "{filter:?}");
    }
}

pub async fn a_search_takes_the_beginning_of_id_key_type_or_tag(lab: Lab) {
    lab.accept([
        of_kind(0xabc, "report"),
        keyed(2, "rep%ort_1"),
        NewTask { tags: vec!["x".to_owned(), "reply".to_owned()], ..task(3) },
        keyed(4, "Re"),
        in_pool(5, "rep"),
    ])
    .await;
    let search = async |q: &str| {
        found(&lab, TaskFilter { q: Some(q.to_owned()), ..TaskFilter::default() }).await
    };
    assert_eq!(search("rep").await, [2, 3, 0xabc].map(id));
    assert_eq!(search("repo").await, [id(0xabc)]);
    assert_eq!(search("rep%").await, [id(2)], "no pattern");
    assert_eq!(search("rep_").await, []);
    assert_eq!(search("ort").await, []);
    assert_eq!(search("sync").await.len(), 4);
    let text = id(0xabc).to_string();
    for length in [18, 19, 20, 30, 36] {
        assert_eq!(search(&text[..length]).await, [id(0xabc)], "{}", &text[..length]);
        assert_eq!(search(&text[..length].to_uppercase()).await, [id(0xabc)]);
    }
    assert_eq!(search(&format!("{text}0")).await, []);
    assert_eq!(search("'; DROP TABLE task; --").await, []);
}

pub async fn pages_hold_everything_once_while_others_write(lab: Lab) {
    lab.accept((0..25).map(task)).await;
    for limit in [1, 7, 25, 100] {
        let mut seen = Vec::new();
        let mut cursor = None;
        loop {
            let page = PageRequest { limit, cursor };
            let page = lab.tasks(&TaskFilter::default(), &page).await.unwrap();
            assert!(page.items.len() <= limit);
            seen.extend(page.items.iter().map(|task| task.id));
            let Some(next) = page.next else { break };
            cursor = Some(next);
            let late = 1_000 * limit as u128 + seen.len() as u128;
            lab.accept([task(late)]).await;
        }
        let old: Vec<_> = seen.iter().filter(|seen| **seen < id(1_000)).collect();
        assert_eq!(old.len(), 25, "each of the old ones, with pages of {limit}");
        let mut unique = seen.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), seen.len(), "none twice, with pages of {limit}");
    }
}

pub async fn an_unreasonable_page_size_is_brought_into_bounds(lab: Lab) {
    lab.accept((0..PAGE_MAX as u128 + 2).map(task)).await;
    let size = async |limit| {
        lab.tasks(&TaskFilter::default(), &first_page(limit)).await.unwrap().items.len()
    };
    assert_eq!(size(0).await, 1);
    assert_eq!(size(usize::MAX).await, PAGE_MAX);
}

pub async fn a_cursor_that_was_never_given_out_is_refused(lab: Lab) {
    lab.accept((0..3).map(task)).await;
    let given = lab.tasks(&TaskFilter::default(), &first_page(1)).await.unwrap().next.unwrap();
    for cursor in
        ["", "x", "-1", "0", "tasks:", "tasks:x", "tasks:1,", "é", &given[..given.len() - 1]]
    {
        // A shortened cursor may happen to be another valid one; anything else may not be.
        if given.starts_with(cursor) && !cursor.is_empty() {
            continue;
        }
        let page = PageRequest { limit: 5, cursor: Some(cursor.to_owned()) };
        let all = TaskFilter::default();
        let dead = DeadLetterFilter::default();
        let errors = [
            lab.tasks(&all, &page).await.err(),
            lab.dead_letters(&dead, Order::NewestFirst, &page).await.err(),
            lab.schedules(&page).await.err(),
            lab.occurrences(None, &page).await.err(),
            lab.audit(&page).await.err(),
        ];
        for (n, error) in errors.into_iter().enumerate() {
            let invalid = matches!(error, Some(StoreError::Invalid { field: "cursor", .. }));
            assert!(invalid, "{cursor:?} in list {n}: {error:?}");
        }
    }
    let elsewhere = lab.audit(&PageRequest { limit: 5, cursor: Some(given) }).await;
    assert!(matches!(elsewhere, Err(StoreError::Invalid { field: "cursor", .. })));
}

pub async fn an_unknown_task_is_none(lab: Lab) {
    assert_eq!(lab.task(id(1)).await.unwrap(), None);
    assert_eq!(lab.attempts(id(1)).await.unwrap(), []);
}

pub async fn figures_tell_every_place(lab: Lab) {
    lab.accept([task(1), task(2), due_at(3, 500), in_pool(4, "io"), task(5), task(6)]).await;
    lab.run_one(done("x"), 1).await;
    lab.run_one(hopeless("x"), 1).await;
    lab.cancel_one(id(5), 1).await;
    lab.take_with(ClaimRequest { pool: Some("io".into()), ..request(1, 1) }).await;
    let stats = lab.stats(at(2)).await.unwrap();
    let count = |pool: &str, state| stats.tasks.get(&(pool.into(), state)).copied().unwrap_or(0);
    let default = State::ALL.map(|state| count("default", state));
    assert_eq!(default, [2, 0, 1, 1, 1], "{stats:?}");
    assert_eq!(count("io", State::Running), 1);
    assert_eq!(stats.dead_letters, 1);
    assert_eq!(stats.ready.get("default"), Some(&1));
    assert_eq!(stats.ready.get("io").copied().unwrap_or(0), 0);
    assert_eq!(stats.oldest_ready.get("default"), Some(&at(0)));
    assert_eq!(lab.stats(at(500)).await.unwrap().ready.get("default"), Some(&2));
}

pub async fn only_what_could_start_counts_as_ready(lab: Lab) {
    lab.accept([with_concurrency_key(1, "a"), with_concurrency_key(2, "a"), due_at(3, 7)]).await;
    let nightly = schedule("s", 60);
    lab.add_schedule(&nightly).await;
    let after = lab.fire_one(plan(&nightly, NewTask { run_at: at(9), ..task(4) }, 60), 60).await;
    lab.fire_one(plan(&after, held(task(5)), 120), 120).await;
    let ready = async |seconds| {
        let stats = lab.stats(at(seconds)).await.unwrap();
        let ready = stats.ready.get("default").copied().unwrap_or(0);
        (ready, stats.oldest_ready.get("default").copied())
    };
    assert_eq!(ready(0).await, (1, Some(at(0))));
    assert_eq!(ready(10).await, (3, Some(at(0))));
    lab.take_one(10).await;
    assert_eq!(ready(10).await, (2, Some(at(7))), "the key's other task is parked");
    lab.take(9, 10).await;
    assert_eq!(ready(10).await, (0, None));
}

pub async fn the_freeze_is_kept(lab: Lab) {
    assert_eq!(lab.settings().await.unwrap(), Settings::default());
    let frozen = Frozen { by: "ann".to_owned(), at: at(5), reason: "audit".to_owned() };
    lab.set(SettingChange::Freeze(frozen.clone())).await;
    let expected = Settings { frozen: Some(frozen), ..Settings::default() };
    assert_eq!(lab.settings().await.unwrap(), expected);
    lab.set(SettingChange::Thaw).await;
    assert_eq!(lab.settings().await.unwrap(), Settings::default());
}

pub async fn pools_and_limits_are_kept_by_name(lab: Lab) {
    let note = || Some("slow disk".to_owned());
    for (name, size) in [("io", Some(5)), ("cpu", None), ("io", Some(6))] {
        let change = PoolChange { paused: Some(true), note: note(), size: Some(size) };
        lab.set_pool(name, change).await;
    }
    let setting = |size| PoolSetting { paused: true, note: note(), size };
    let rate = |text: &str| Some(text.parse().unwrap());
    let first = TypeLimit { concurrency: Some(3), per_key: 2, ..limit("a") };
    let pointer = Some("/tenant".to_owned());
    let second = TypeLimit { rate_limit: rate("100/m"), concurrency_key: pointer, ..limit("b") };
    let other = TypeLimit { rate_limit: rate("5/s"), ..limit("a") };
    lab.set(SettingChange::Limits(vec![first, second.clone()])).await;
    lab.set(SettingChange::Limits(vec![other.clone()])).await;
    let settings = lab.settings().await.unwrap();
    let pools = [("cpu".into(), setting(None)), ("io".into(), setting(Some(6)))];
    assert_eq!(settings.pools, pools.into());
    assert_eq!(settings.limits, [("a".into(), other), ("b".into(), second)].into());
}

pub async fn routes_and_sizes_are_kept_by_name(lab: Lab) {
    let route = |kind: &str, pool: Option<&str>| (kind.into(), pool.map(Into::into));
    lab.set(SettingChange::Routes(
        [route("a", Some("io")), route("b\0", Some("cpu")), route("c", Some("io"))].into(),
    ))
    .await;
    lab.set(SettingChange::Routes(
        [route("a", Some("cpu")), route("c", None), route("no such", None)].into(),
    ))
    .await;
    lab.set(SettingChange::Sizes([("payload_bytes".into(), 7), ("key_bytes".into(), 1)].into()))
        .await;
    lab.set(SettingChange::Sizes([("key_bytes".into(), 2)].into())).await;
    let settings = lab.settings().await.unwrap();
    assert_eq!(settings.routes, [("a".into(), "cpu".into()), ("b\0".into(), "cpu".into())].into());
    let sizes = [("payload_bytes".into(), 7), ("key_bytes".into(), 2)];
    assert_eq!(settings.sizes, sizes.into());
}

pub async fn a_pools_setting_is_changed_only_where_it_is_asked_to(lab: Lab) {
    let none = PoolChange::default();
    let note = |text: &str| Some(text.to_owned());
    let set = |paused, note, size| PoolSetting { paused, note, size };
    let steps = [
        (PoolChange { size: Some(Some(5)), ..none.clone() }, set(false, None, Some(5))),
        (
            PoolChange { paused: Some(true), note: note("disk"), size: None },
            set(true, note("disk"), Some(5)),
        ),
        (PoolChange { size: Some(Some(6)), ..none.clone() }, set(true, note("disk"), Some(6))),
        (none.clone(), set(true, note("disk"), Some(6))),
        (PoolChange { size: Some(None), ..none.clone() }, set(true, note("disk"), None)),
        (PoolChange { paused: Some(true), ..none.clone() }, set(true, None, None)),
        (PoolChange { paused: Some(false), note: note("x"), size: None }, set(false, None, None)),
    ];
    for (change, expected) in steps {
        lab.set_pool("io", change.clone()).await;
        assert_eq!(lab.settings().await.unwrap().pools["io"], expected, "after {change:?}");
    }
    for size in 1..=20 {
        let resize = PoolChange { size: Some(Some(size)), ..none.clone() };
        tokio::join!(lab.pause("io", size % 2 == 0), lab.set_pool("io", resize));
        let expected = set(size % 2 == 0, None, Some(size));
        assert_eq!(lab.settings().await.unwrap().pools["io"], expected, "one beside the other");
    }
}

fn entry(n: i64) -> AuditEntry {
    AuditEntry {
        time: at(n),
        who: format!("who {n}"),
        action: "pool.pause".to_owned(),
        target: "io".to_owned(),
        reason: (n % 2 == 0).then(|| "näh".to_owned()),
    }
}

pub async fn a_setting_is_changed_with_its_record(lab: Lab) {
    let change = SettingChange::Pool { name: "io".into(), change: PoolChange::default() };
    lab.change_setting(change, Some(entry(1))).await.unwrap();
    lab.change_setting(SettingChange::Thaw, None).await.unwrap();
    assert_eq!(lab.all_audit().await, [entry(1)]);
}

pub async fn the_last_recorded_act_is_listed_first(lab: Lab) {
    for n in [3, 1, 2, 5, 4] {
        lab.record(entry(n)).await.unwrap();
    }
    for limit in [1, 2, 9] {
        let pages = every(async |page| lab.audit(&PageRequest { limit, ..page }).await.unwrap());
        assert_eq!(pages.await, [4, 5, 2, 1, 3].map(entry));
    }
}

pub async fn the_ledger_knows_who_has_a_key(lab: Lab) {
    let entry = async || lab.ledger("sync", "k").await.unwrap();
    assert_eq!(entry().await, None);
    lab.offer(keyed(1, "k"), 3).await;
    let live = entry().await.unwrap();
    assert_eq!((live.task_id, live.state, live.at), (id(1), State::Pending, at(3)));
    assert_eq!((&*live.kind, &*live.execution_key, &live.result), ("sync", "k", &None));
    let claimed = lab.take_one(5).await;
    let live = entry().await.unwrap();
    assert_eq!((live.state, live.at), (State::Running, at(5)));
    lab.finish(&claimed, done("x"), 7).await;
    let completed = entry().await.unwrap();
    assert_eq!((completed.state, completed.at), (State::Completed, at(7)));
    assert_eq!(completed.result, Some(Json::string("x")));
    assert_eq!(lab.ledger("other", "k").await.unwrap(), None);
    lab.bury(keyed(2, "dead"), "x", 9).await;
    assert_eq!(lab.ledger("sync", "dead").await.unwrap(), None);
}

pub async fn a_forgotten_key_may_run_again(lab: Lab) {
    lab.accept([keyed(1, "k")]).await;
    let forget = async |key: &str| lab.forget_key("sync", key, &act(9)).await.unwrap();
    assert!(!forget("never used").await);
    assert!(!forget("k").await, "pending");
    let claimed = lab.take_one(1).await;
    assert!(!forget("k").await, "running");
    lab.finish(&claimed, done("x"), 2).await;
    assert_eq!(lab.all_audit().await, []);
    assert!(forget("k").await);
    assert!(!forget("k").await);
    let audit = lab.all_audit().await;
    assert_eq!((&*audit[0].action, &*audit[0].target), ("ledger.forget", "sync/k"));
    assert_eq!(lab.state(id(1)).await, State::Completed, "the task itself is history");
    lab.accept([keyed(2, "k")]).await;
    assert_eq!(lab.run_one(done("y"), 3).await.id, id(2));
    assert_eq!(lab.ledger("sync", "k").await.unwrap().unwrap().task_id, id(2));
}

pub fn operation(n: u128, created: i64, state: OperationState) -> Operation {
    let filter = DeadLetterFilter { kind: Some("sync".to_owned()), ..DeadLetterFilter::default() };
    Operation {
        id: Uuid::from_u128(n),
        kind: OperationKind::Replay {
            ids: Some(vec![id(1), id(2)]),
            filter: Some(filter),
            payload: Some(Json::trusted(r#"{"big": 1970670598291982290}"#)),
            canary: true,
            canary_id: None,
            per_minute: Some(30),
            done: Some("1".to_owned()),
        },
        state,
        by: "ann".to_owned(),
        reason: Some("repaired".to_owned()),
        created_at: at(created),
        finished_at: None,
        total: 2,
        replayed: 1,
        deduplicated: 0,
        failed: 0,
        detail: Some("waits for the canary".to_owned()),
    }
}

pub async fn operations_are_kept_and_the_running_ones_found(lab: Lab) {
    let first = operation(1, 50, OperationState::Running);
    let second = operation(2, 10, OperationState::Running);
    let ended = operation(3, 20, OperationState::Completed);
    let backfill = OperationKind::Backfill {
        schedule: "nightly".to_owned(),
        from: at(0),
        to: at(900),
        mode: BackfillMode::MissingFailed,
        concurrency: 2,
        done_to: Some(at(60)),
        live: vec![id(3)],
    };
    let third = Operation { kind: backfill, ..operation(4, 30, OperationState::Running) };
    for operation in [&first, &second, &ended, &third] {
        lab.put_operation(operation).await.unwrap();
        assert_eq!(lab.operation(operation.id).await.unwrap().as_ref(), Some(operation));
    }
    assert_eq!(lab.operation(Uuid::from_u128(9)).await.unwrap(), None);
    let running = lab.running_operations().await.unwrap();
    assert_eq!(running, [second, third.clone(), first.clone()], "oldest first");
    let stopped = Operation {
        state: OperationState::Stopped,
        finished_at: Some(at(60)),
        detail: Some("the canary failed".to_owned()),
        ..first
    };
    lab.put_operation(&stopped).await.unwrap();
    assert_eq!(lab.operation(stopped.id).await.unwrap(), Some(stopped));
    assert_eq!(lab.running_operations().await.unwrap().len(), 2);
}

pub async fn tokens_are_kept_by_name(lab: Lab) {
    let token = |name: &str, role: &str, created: Timestamp| Token {
        name: name.to_owned(),
        role: role.to_owned(),
        types: vec!["sync".to_owned()],
        hash: "ab".repeat(32),
        created_at: created,
        created_by: "ann".to_owned(),
    };
    let (ci, bot) = (token("ci", "worker", at(1)), token("bot", "viewer", at(2)));
    for token in [&ci, &bot] {
        lab.put_token(token).await.unwrap();
    }
    assert_eq!(lab.tokens().await.unwrap(), [bot.clone(), ci]);
    let again = token("ci", "admin", at(3));
    lab.put_token(&again).await.unwrap();
    assert_eq!(lab.tokens().await.unwrap(), [bot, again.clone()]);
    assert!(lab.revoke_token("bot").await.unwrap());
    assert!(!lab.revoke_token("bot").await.unwrap());
    assert_eq!(lab.tokens().await.unwrap(), [again]);
}

pub async fn notes_are_kept_by_key(lab: Lab) {
    assert_eq!(lab.note("file").await.unwrap(), None);
    lab.put_note("file", "abc").await.unwrap();
    lab.put_note("clock", "").await.unwrap();
    lab.put_note("file", "def").await.unwrap();
    assert_eq!(lab.note("file").await.unwrap().as_deref(), Some("def"));
    assert_eq!(lab.note("clock").await.unwrap().as_deref(), Some(""));
}

pub async fn surroundings_tell_of_freeze_pause_and_rivals(lab: Lab) {
    lab.accept([in_pool(1, "io"), in_pool(2, "io"), in_pool(3, "io"), task(4)]).await;
    let third = lab.see(id(3)).await;
    let around = lab.surroundings(&third, at(1)).await.unwrap();
    assert_eq!((around.frozen, around.pool_paused, around.ahead), (None, false, 2));
    assert_eq!((around.worker, around.cancel_requested), (None, false));
    let frozen = Frozen { by: "ann".to_owned(), at: at(1), reason: "audit".to_owned() };
    lab.set(SettingChange::Freeze(frozen)).await;
    lab.pause("io", true).await;
    let around = lab.surroundings(&third, at(1)).await.unwrap();
    assert_eq!((around.frozen.as_deref(), around.pool_paused), (Some("audit"), true));
}

pub async fn surroundings_count_workers_and_slots(lab: Lab) {
    lab.retire(&request(1, 1).worker, at(0)).await.unwrap();
    lab.accept([in_pool(1, "io"), in_pool(2, "io"), in_pool(3, "io")]).await;
    let third = lab.see(id(3)).await;
    let counts = async |seconds| {
        let around = lab.surroundings(&third, at(seconds)).await.unwrap();
        (around.workers_for_type, around.pool_busy, around.pool_size)
    };
    assert_eq!(counts(1).await, (0, 0, 0));
    let pools = |io| vec![("io".into(), io), ("cpu".into(), 9)];
    let others = Types::Only(std::sync::Arc::new(["other".into()].into()));
    lab.register(Worker { pools: pools(3), ..worker("a", at(50)) }).await.unwrap();
    lab.register(Worker { pools: pools(4), ..worker("b", at(90)) }).await.unwrap();
    lab.register(Worker { pools: pools(5), types: others, ..worker("c", at(90)) }).await.unwrap();
    let by_b = ClaimRequest { worker: matins_core::task::WorkerId("b".into()), ..request(2, 1) };
    lab.take_with(by_b).await;
    assert_eq!(counts(2).await, (2, 2, 7));
    assert_eq!(counts(51).await, (1, 2, 4), "a lapsed worker is none");
    let running = lab.see(id(1)).await;
    lab.cancel_one(id(1), 3).await;
    let around = lab.surroundings(&running, at(3)).await.unwrap();
    assert_eq!(around.worker.as_deref(), Some("b"));
    let running = lab.see(id(1)).await;
    assert!(lab.surroundings(&running, at(3)).await.unwrap().cancel_requested);
}

pub async fn surroundings_tell_of_limits(lab: Lab) {
    let rate_limit = Some("1/m".parse().unwrap());
    lab.set_limit(TypeLimit { rate_limit, concurrency: Some(4), ..limit("sync") }).await;
    lab.accept([with_concurrency_key(1, "a"), with_concurrency_key(2, "a"), task(3)]).await;
    let second = lab.see(id(2)).await;
    let around = lab.surroundings(&second, at(0)).await.unwrap();
    assert_eq!((around.rate_limited_until, around.concurrency), (None, Some((0, 4))));
    assert!(around.key_parked, "the first goes first");
    lab.take_one(0).await;
    let around = lab.surroundings(&second, at(1)).await.unwrap();
    assert_eq!(around.rate_limited_until, Some(at(60)));
    assert_eq!(around.concurrency, Some((1, 4)));
    assert!(around.key_parked);
    let third = lab.see(id(3)).await;
    assert!(!lab.surroundings(&third, at(1)).await.unwrap().key_parked);
    let other = lab.surroundings(&of_other_type(&lab).await, at(1)).await.unwrap();
    assert_eq!((other.rate_limited_until, other.concurrency), (None, None));
}

async fn of_other_type(lab: &Lab) -> matins_core::Task {
    lab.accept([of_kind(50, "other")]).await;
    lab.see(id(50)).await
}

pub async fn surroundings_tell_of_quarantine(lab: Lab) {
    lab.accept([task(1)]).await;
    lab.run_one(loss(), 0).await;
    lab.run_one(loss(), 1).await;
    let waiting = lab.see(id(1)).await;
    assert!(!lab.surroundings(&waiting, at(99)).await.unwrap().quarantine_busy);
    lab.take_one(99).await;
    assert!(lab.surroundings(&waiting, at(99)).await.unwrap().quarantine_busy);
}
