//! Files that are not what they should be, and the schema.

use matins_core::limits::Limits;
use matins_core::schedule::{self, ManagedBy, ScheduleSpec};
use matins_core::store::{Expect, Queue, Store, StoreError, Timetables};
use matins_store::sqlite::migrate;
use matins_store::sqlite::{Migrate, raw::Raw};
use matins_store::{Options, SqliteStore};
use rusqlite::Connection;

use super::bed::{Bed, at, task};

fn refusal(path: &std::path::Path, options: Options) -> String {
    match SqliteStore::open(path, options) {
        Err(StoreError::Broken(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_a_store_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    std::fs::write(&text, "not a database at all, but long enough to be looked at\n".repeat(100))
        .unwrap();
    let said = refusal(&text, Options::default());
    assert!(said.contains("notes.txt is not an SQLite file"), "{said}");
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));

    let foreign = directory.path().join("foreign.db");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let said = refusal(&foreign, Options::default());
    assert!(said.contains("foreign.db is the SQLite file of another program"), "{said}");

    let said = refusal(directory.path(), Options::default());
    assert!(said.contains("cannot be opened"), "{said}");
    let said = refusal(&directory.path().join("no/such/directory.db"), Options::default());
    assert!(said.contains("directory.db"), "{said}");
}

#[tokio::test]
async fn a_damaged_file_is_said_to_be_damaged() {
    let bed = Bed::new();
    bed.enqueue((0..2_000).map(|_| task("a")).collect(), at(0)).await.unwrap();
    bed.close().await.unwrap();
    let mut bytes = std::fs::read(&bed.path).unwrap();
    for byte in &mut bytes[8_192..60_000] {
        *byte = 0xa5;
    }
    std::fs::write(&bed.path, bytes).unwrap();
    let broken = match SqliteStore::open(&bed.path, Options::default()) {
        Err(error) => error,
        Ok(store) => store.enqueue(vec![task("a")], at(0)).await.unwrap_err(),
    };
    assert!(matches!(&broken, StoreError::Broken(_)), "{broken}");
}

#[tokio::test]
async fn the_schema_is_brought_up_to_date_or_the_command_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("matins.db");
    let manual = Options { migrate: Migrate::Manual, ..Options::default() };
    assert_eq!(migrate::pending(&path).unwrap().len(), migrate::LATEST as usize);
    assert!(!path.exists(), "a look makes no file");
    let said = refusal(&path, manual);
    assert!(said.contains("run `matins migrate`"), "{said}");
    let done = migrate::apply(&path).unwrap();
    assert_eq!(done.last().unwrap().version, migrate::LATEST);
    assert_eq!(migrate::pending(&path).unwrap(), []);
    let store = SqliteStore::open(&path, manual).unwrap();
    let id = store.info().store_id;
    store.close().await.unwrap();
    let again = SqliteStore::open(&path, Options::default()).unwrap();
    assert_eq!(again.info().store_id, id);
    again.close().await.unwrap();

    let conn = Connection::open(&path).unwrap();
    conn.execute("INSERT INTO migration VALUES (99, 'future', 'x', 0)", []).unwrap();
    let said = refusal(&path, Options::default());
    assert!(said.contains("version 99") && said.contains("newer matins"), "{said}");
    conn.execute("DELETE FROM migration WHERE version = 99", []).unwrap();
    conn.execute("UPDATE migration SET checksum = 'forged'", []).unwrap();
    let said = refusal(&path, Options::default());
    assert!(said.contains("is not the one this program knows"), "{said}");
}

#[test]
fn many_processes_may_make_the_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("matins.db");
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || SqliteStore::open(path, Options::default()).unwrap())
        })
        .collect();
    let ids: std::collections::BTreeSet<_> =
        threads.into_iter().map(|thread| thread.join().unwrap().info().store_id).collect();
    assert_eq!(ids.len(), 1);
}

#[test]
#[cfg(unix)]
fn the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let bed = Bed::new();
    let mode = std::fs::metadata(&bed.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_closed_store_answers_that_it_is_closed() {
    let bed = Bed::new();
    bed.enqueue(vec![task("a")], at(0)).await.unwrap();
    bed.close().await.unwrap();
    let refused = bed.enqueue(vec![task("a")], at(0)).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    assert!(bed.ping().await.is_err());
    bed.close().await.unwrap();
    let mut log = bed.path.clone().into_os_string();
    log.push("-wal");
    let left = std::fs::metadata(log).map_or(0, |file| file.len());
    assert_eq!(left, 0, "the log has been written back");
}

#[test]
fn the_bare_store_does_what_it_says_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut raw = Raw::new(directory.path()).unwrap();
    let inserted = raw.insert(2_500, 1_000, "{}").unwrap();
    assert_eq!(inserted.tasks, 2_500);
    let worked = raw.claim_and_complete(5_000, 1_000).unwrap();
    assert_eq!(worked.tasks, 2_500, "no more than there are");
    assert!(worked.per_second() > 0.0);
    drop(raw);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// A file with very many schedules is written in the time that its bytes take: rows share pages.
#[tokio::test]
async fn schedules_take_the_room_that_they_need() {
    const COUNT: u64 = 2_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("matins.db");
    let store = SqliteStore::open(&path, Options::default()).unwrap();
    let empty = std::fs::metadata(&path).unwrap().len();
    let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
    let mut bytes = 0;
    let write = |n: u64| {
        let mut spec = ScheduleSpec::new(&format!("job-{n:06}"), "0 2 * * *", "quick");
        spec.execution_key = Some(format!("job-{n}-{{{{ occurrence.date }}}}"));
        spec.note = Some("what is more than a quarter of a page".repeat(4));
        let by = ManagedBy::File;
        schedule::create(uuid::Uuid::now_v7(), spec, by, &Limits::default(), now).unwrap()
    };
    let states: Vec<_> = (0..COUNT).map(write).collect();
    for state in &states {
        bytes += serde_json::to_string(state).unwrap().len() as u64;
    }
    let writes = states.into_iter().map(|state| (Expect::Absent, state)).collect();
    let written = store.put_schedules(writes).await.unwrap();
    assert_eq!(written, vec![true; COUNT as usize]);
    store.close().await.unwrap();
    let grown = std::fs::metadata(&path).unwrap().len() - empty;
    assert!(grown < 2 * bytes, "{bytes} bytes of schedules took {grown}");
}
