//! The caller's own transaction on the same file.

use matins_core::lifecycle::Outcome;
use matins_core::store::{Enqueued, Queue, Records};
use matins_core::task::State;
use matins_store::sqlite::{CompleteError, complete_in, enqueue_in};
use rusqlite::TransactionBehavior;

use super::bed::{Bed, at, done, ended, keyed, task};

#[tokio::test]
async fn a_task_is_accepted_with_the_callers_transaction_or_not_at_all() {
    let bed = Bed::new();
    bed.register().await;
    bed.enqueue(vec![task("warm")], at(0)).await.unwrap();
    let mut conn = bed.connect();
    conn.execute_batch("CREATE TABLE orders (id INTEGER)").unwrap();
    for commit in [false, true] {
        let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO orders VALUES (1)", []).unwrap();
        let new = keyed("invoice", "order-1");
        let answer = enqueue_in(&transaction, &new, at(0)).unwrap();
        assert_eq!(answer, Enqueued::Created);
        let again = enqueue_in(&transaction, &keyed("invoice", "order-1"), at(0)).unwrap();
        assert!(matches!(again, Enqueued::Existing(holder) if holder.id == new.id));
        if commit {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
        }
        let stored = bed.task(new.id).await.unwrap();
        assert_eq!(stored.is_some(), commit);
        bed.assert_sound().await;
    }
    assert_eq!(bed.claim(9).await.len(), 2, "the writer has heard of it");
    bed.assert_sound().await;
}

#[tokio::test]
async fn effect_and_completion_are_committed_together() {
    let bed = Bed::new();
    bed.register().await;
    bed.enqueue(vec![task("a")], at(0)).await.unwrap();
    let claimed = bed.claim(1).await.remove(0);
    let settlement = ended(&claimed, done("7"));
    let mut conn = bed.connect();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    complete_in(&transaction, &settlement).unwrap();
    drop(transaction);
    assert_eq!(bed.task(claimed.task.id).await.unwrap().unwrap().state, State::Running);

    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    complete_in(&transaction, &settlement).unwrap();
    transaction.commit().unwrap();
    assert_eq!(bed.task(claimed.task.id).await.unwrap().unwrap().state, State::Completed);

    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let late = complete_in(&transaction, &settlement);
    assert!(matches!(late, Err(CompleteError::Fenced)), "{late:?}");
    drop(transaction);
    // The run that committed by itself is then settled once more by whoever started it.
    let own = bed.end(&claimed, Outcome::SettledByRun).await;
    assert_eq!(own, matins_core::store::Settled::Fenced);
    bed.assert_sound().await;
}
