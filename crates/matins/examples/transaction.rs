//! Effect and completion in one commit: `cargo run -p matins --example transaction`.
//!
//! The business table lies in the same SQLite file. However often the process dies, each order is
//! shipped once: the row and the completion of the task commit together or not at all.

use std::time::Duration;

use matins::rusqlite::{Connection, TransactionBehavior, params};
use matins::{Context, Matins, Task, TaskError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: u32,
    file: String,
}

impl Task for Ship {
    const TYPE: &'static str = "ship";
}

fn open(file: &str) -> Result<Connection, matins::rusqlite::Error> {
    let conn = Connection::open(file)?;
    conn.busy_timeout(Duration::from_secs(10))?;
    Ok(conn)
}

fn ship(ship: Ship, context: Context) -> Result<(), TaskError> {
    let mut conn = open(&ship.file)?;
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO shipped (order_id) VALUES (?1)", params![ship.order])?;
    context.complete_in(&mut tx, &())?;
    tx.commit()?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("shop.db").display().to_string();
    let matins = Matins::open(format!("sqlite:{file}")).blocking_handler(ship).start().await?;

    let mut conn = open(&file)?;
    conn.execute_batch(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY); CREATE TABLE shipped (order_id INTEGER)",
    )?;

    // The order and the task that ships it commit together, too.
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders (id) VALUES (?1)", params![4711])?;
    let answer = matins.enqueue_in(&mut tx, Ship { order: 4711, file: file.clone() }).await?;
    tx.commit()?;

    let done = matins.client().wait(answer.task.id, Some(Duration::from_secs(10))).await?;
    let shipped: u32 = conn.query_row("SELECT count(*) FROM shipped", [], |row| row.get(0))?;
    println!("{}, shipped {shipped} times", done.state);
    matins.shutdown().await;
    Ok(())
}
