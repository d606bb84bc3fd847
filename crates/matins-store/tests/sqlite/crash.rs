//! Killed at any moment, torn in the middle of a write: what was promised is there.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

use matins_core::page::PageRequest;
use matins_core::store::{Queue, Records, Store, TaskFilter};
use matins_core::task::{State, Task};
use matins_store::{Options, SqliteStore};

use super::bed::{Bed, at, task};
use super::child::Process;

pub(crate) async fn all_tasks(store: &SqliteStore) -> Vec<Task> {
    let mut page = PageRequest { limit: 1_000, cursor: None };
    let mut tasks = Vec::new();
    loop {
        let found = store.tasks(&TaskFilter::default(), &page).await.unwrap();
        tasks.extend(found.items);
        page.cursor = found.next;
        if page.cursor.is_none() {
            return tasks;
        }
    }
}

#[tokio::test]
async fn what_was_accepted_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("matins.db");
    let mut accepted = BTreeSet::new();
    let mut completed = BTreeSet::new();
    for round in 0..4 {
        let mut process = Process::start("torture", &path, "");
        process.expect("ready");
        tokio::time::sleep(Duration::from_millis(300 + 130 * round)).await;
        // The last line may be cut in the middle of an id.
        for line in process.kill() {
            let mut words = line.split(' ');
            let whole = |id: &&str| id.len() == 36;
            match words.next() {
                Some("accepted") => accepted.extend(words.filter(whole).map(str::to_owned)),
                Some("completed") => completed.extend(words.filter(whole).map(str::to_owned)),
                _ => {}
            }
        }
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        assert_eq!(store.check_invariants().await.unwrap(), Vec::<String>::new());
        let tasks = all_tasks(&store).await;
        let stored: BTreeSet<String> = tasks.iter().map(|task| task.id.to_string()).collect();
        let lost: Vec<_> = accepted.difference(&stored).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?} of {}", accepted.len());
        let ended = tasks.iter().filter(|task| task.state == State::Completed);
        let ended: BTreeSet<String> = ended.map(|task| task.id.to_string()).collect();
        let undone: Vec<_> = completed.difference(&ended).collect();
        assert!(undone.is_empty(), "round {round}: {undone:?} completed, and then not");
        // Claims of the dead process are found by whoever looks.
        store.retire(&matins_core::task::WorkerId("w".into()), at(0)).await.unwrap();
        let running = tasks.iter().filter(|task| task.state == State::Running).count();
        assert_eq!(store.lapsed(at(0), usize::MAX).await.unwrap().len(), running);
        store.close().await.unwrap();
    }
    assert!(accepted.len() > 100 && !completed.is_empty(), "{} accepted", accepted.len());
}

/// Copies a store as a crash would leave it: nobody has tidied up.
fn crashed_copy(bed: &Bed, directory: &std::path::Path, name: &str) -> std::path::PathBuf {
    let copy = directory.join(format!("{name}.db"));
    // The log first: what moves from it into the file in between is then in both copies, not in
    // none.
    std::fs::copy(log_of(&bed.path), log_of(&copy)).unwrap();
    std::fs::copy(&bed.path, &copy).unwrap();
    copy
}

fn log_of(path: &std::path::Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

#[tokio::test]
async fn a_torn_tail_of_the_log_loses_no_more_than_the_transaction_it_tore() {
    let bed = Bed::new();
    let mut sizes = Vec::new();
    for _ in 0..20 {
        bed.enqueue(vec![task("a"), task("b")], at(0)).await.unwrap();
        sizes.push(std::fs::metadata(log_of(&bed.path)).unwrap().len());
    }
    let directory = tempfile::tempdir().unwrap();
    let size = *sizes.last().unwrap();
    for damage in ["cut", "cut more", "zeros", "noise"] {
        let copy = crashed_copy(&bed, directory.path(), damage);
        let mut log = OpenOptions::new().write(true).open(log_of(&copy)).unwrap();
        // Somewhere inside of the last transaction.
        let from = sizes[sizes.len() - 2] + 100;
        match damage {
            "cut" => log.set_len(size - 1).unwrap(),
            "cut more" => log.set_len(from).unwrap(),
            fill => {
                log.seek(SeekFrom::Start(from)).unwrap();
                let byte = if fill == "zeros" { 0 } else { 0xa5 };
                log.write_all(&vec![byte; (size - from) as usize]).unwrap();
            }
        }
        drop(log);
        let store = SqliteStore::open(&copy, Options::default()).unwrap();
        let count = all_tasks(&store).await.len();
        assert!([38, 40].contains(&count), "{damage}: {count} of 40");
        assert_eq!(store.check_invariants().await.unwrap(), Vec::<String>::new(), "{damage}");
        store.enqueue(vec![task("a")], at(0)).await.unwrap();
        assert_eq!(all_tasks(&store).await.len(), count + 1);
        store.close().await.unwrap();
    }
}
