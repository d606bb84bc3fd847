//! The schedules of a file, made the store's: all or none of what is wrong, many at once, and
//! never against somebody who was quicker.

use std::sync::Arc;

use jiff::Timestamp;
use matins_core::memory::MemoryStore;
use matins_core::page::PageRequest;
use matins_core::schedule::{ManagedBy, OccurrenceOutcome, Reason, ScheduleSpec, ScheduleStatus};
use matins_runtime::Client;
use matins_runtime::clock::Clock;
use matins_runtime::rules::Rules;
use uuid::Uuid;

/// More than one write's worth, on more than one core.
const MANY: usize = 4_500;

struct At(std::sync::Mutex<Timestamp>);

impl Clock for At {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    fn boot_ns(&self) -> u64 {
        0
    }
}

fn client() -> (Client, Arc<At>) {
    let clock = Arc::new(At(std::sync::Mutex::new("2027-01-01T00:00:30Z".parse().unwrap())));
    let store = Arc::new(MemoryStore::new(Uuid::new_v4()));
    (Client::with_clock(store, Rules::default(), clock.clone()), clock)
}

fn spec(name: &str, schedule: &str) -> ScheduleSpec {
    ScheduleSpec::new(name, schedule, "quick")
}

fn many() -> Vec<ScheduleSpec> {
    // Not in the order of their names.
    (0..MANY).rev().map(|n| spec(&format!("job-{n:05}"), "0 * * * *")).collect()
}

async fn names(client: &Client) -> Vec<String> {
    let mut page = PageRequest { limit: 1_000, cursor: None };
    let mut names = Vec::new();
    loop {
        let found = client.schedules(&page).await.unwrap();
        names.extend(found.items.into_iter().map(|due| due.state.spec.name));
        match found.next {
            Some(next) => page.cursor = Some(next),
            None => return names,
        }
    }
}

#[tokio::test]
async fn a_file_is_written_once_and_then_only_what_has_changed() {
    let (client, clock) = client();
    let mut specs = many();
    assert_eq!(client.apply_file(&specs).await.unwrap(), (MANY, 0));
    let mut expected: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    expected.sort();
    assert_eq!(names(&client).await, expected);
    assert_eq!(client.apply_file(&specs).await.unwrap(), (0, 0));

    let uid = client.schedule("job-00004").await.unwrap().state.uid;
    // Past the hour: what came due under the old expression is decided under the old one.
    *clock.0.lock().unwrap() = "2027-01-01T01:00:10Z".parse().unwrap();
    specs.iter_mut().skip(1).step_by(14).for_each(|spec| spec.schedule = "30 * * * *".to_owned());
    let gone: Vec<_> = specs.drain(..100).map(|spec| spec.name).collect();
    specs.push(spec("new", "0 0 * * *"));
    let edited = specs.iter().filter(|spec| spec.schedule == "30 * * * *").count();
    assert_eq!(client.apply_file(&specs).await.unwrap(), (edited + 1, gone.len()));

    let state = client.schedule("job-00004").await.unwrap().state;
    assert_eq!((state.uid, state.spec.schedule.as_str(), state.rev), (uid, "30 * * * *", 2));
    assert_eq!(state.next_fire, Some("2027-01-01T01:30:00Z".parse().unwrap()));
    assert_eq!(state.balance.fired, 1);
    let state = client.schedule("job-00008").await.unwrap().state;
    assert_eq!((state.spec.schedule.as_str(), state.rev), ("0 * * * *", 1));
    for name in gone {
        let due = client.schedule(&name).await.unwrap();
        assert_eq!(due.state.status, ScheduleStatus::Disabled, "{name}");
        let page = PageRequest { limit: 10, cursor: None };
        let history = client.occurrences(Some(&name), &page).await.unwrap().items;
        assert_eq!(history.len(), 1, "{name}");
        let (outcome, reason) = (history[0].outcome, history[0].reason);
        assert_eq!((outcome, reason), (OccurrenceOutcome::Skipped, Some(Reason::Ended)));
    }
    assert_eq!(client.apply_file(&specs).await.unwrap(), (0, 0));
}

#[tokio::test]
async fn one_that_is_refused_leaves_all_as_they_were() {
    let (client, _) = client();
    let mut specs = many();
    // The one that stands first is told, whoever looks at which part.
    specs[MANY - 2].schedule = "0 0 31 2 *".to_owned();
    specs[3_000].schedule = "0 0 30 2 *".to_owned();
    let error = client.apply_file(&specs).await.unwrap_err();
    assert_eq!(error.code(), "never_fires");
    assert!(error.to_string().contains("\"30\""), "{error}");
    assert_eq!(names(&client).await, Vec::<String>::new());
}

/// Whoever is quicker is not overrun: the file speaks again, from what is there then. (A name
/// that stands twice in one go meets itself.)
#[tokio::test]
async fn a_race_is_run_again() {
    let (client, _) = client();
    let twice = |hours: [&str; 2]| hours.map(|hour| spec("a", &format!("0 {hour} * * *")));
    assert_eq!(client.apply_file(&twice(["1", "2"])).await.unwrap(), (2, 0));
    let state = client.schedule("a").await.unwrap().state;
    assert_eq!((state.spec.schedule.as_str(), state.rev), ("0 2 * * *", 2));
    assert_eq!(client.apply_file(&twice(["3", "4"])).await.unwrap(), (2, 0));
    let state = client.schedule("a").await.unwrap().state;
    assert_eq!((state.spec.schedule.as_str(), state.rev), ("0 4 * * *", 4));
}

/// A schedule made by hand becomes the file's when the file names it; others are left alone.
#[tokio::test]
async fn the_file_takes_over_what_it_names() {
    let (client, _) = client();
    for name in ["named", "other"] {
        client.put_schedule(spec(name, "0 2 * * *"), "somebody").await.unwrap();
    }
    assert_eq!(client.apply_file(&[spec("named", "0 2 * * *")]).await.unwrap(), (1, 0));
    let state = client.schedule("named").await.unwrap().state;
    assert_eq!(state.managed_by, ManagedBy::File);
    assert_eq!(client.apply_file(&[]).await.unwrap(), (0, 1));
    let other = client.schedule("other").await.unwrap().state;
    assert_eq!((other.managed_by, other.status), (ManagedBy::Api, ScheduleStatus::Active));
}
