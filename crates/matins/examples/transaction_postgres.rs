//! Effect and completion in one commit, on PostgreSQL:
//! `MATINS_URL=postgres://… cargo run -p matins --example transaction_postgres`.
//!
//! The business tables lie in the database that holds the store. However often the process dies,
//! each order is shipped once.

use std::time::Duration;

use matins::tokio_postgres::{Client, Error, NoTls};
use matins::{Context, Matins, Task, TaskError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i32,
}

impl Task for Ship {
    const TYPE: &'static str = "ship";
}

fn url() -> String {
    std::env::var("MATINS_URL").expect("MATINS_URL: the address of a database")
}

async fn connect() -> Result<Client, Error> {
    let (client, connection) = matins::tokio_postgres::connect(&url(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn ship(ship: Ship, context: Context) -> Result<(), TaskError> {
    let mut client = connect().await?;
    let mut tx = client.transaction().await?;
    tx.execute("INSERT INTO shipped (order_id) VALUES ($1)", &[&ship.order]).await?;
    context.complete_in(&mut tx, &()).await?;
    tx.commit().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let matins = Matins::open(url()).handler(ship).start().await?;
    let mut client = connect().await?;
    client
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY);
             CREATE TABLE IF NOT EXISTS shipped (order_id integer)",
        )
        .await?;

    // The order and the task that ships it commit together, too.
    let mut tx = client.transaction().await?;
    let order: i32 = tx
        .query_one("INSERT INTO orders SELECT count(*) + 1 FROM orders RETURNING id", &[])
        .await?
        .get(0);
    let answer = matins.enqueue_in(&mut tx, Ship { order }).await?;
    tx.commit().await?;

    let done = matins.client().wait(answer.task.id, Some(Duration::from_secs(10))).await?;
    let shipped: i64 = client
        .query_one("SELECT count(*) FROM shipped WHERE order_id = $1", &[&order])
        .await?
        .get(0);
    println!("{}, shipped {shipped} times", done.state);
    matins.shutdown().await;
    Ok(())
}
