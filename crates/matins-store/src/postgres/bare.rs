//! What a store is held against by `matins bench`: bare statements on the same server, in a database
//! of the run's own.
//!
//! A narrow table with one index of what is ready; prepared statements; one transaction each. What
//! a queue of a dozen lines would do: no ids for callers, no fences, no record of attempts.

use std::time::{Duration, Instant};

use matins_core::store::StoreError;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::address::Address;
use super::error::{Failure, Res};

const SHAPE: &str = "CREATE TABLE IF NOT EXISTS bare (
    seq bigserial PRIMARY KEY, id uuid NOT NULL UNIQUE, type text NOT NULL, payload text NOT NULL,
    run_at timestamptz NOT NULL, state smallint NOT NULL DEFAULT 0, finished_at timestamptz);
    CREATE INDEX IF NOT EXISTS bare_line ON bare (run_at, seq) WHERE state = 0";

const INSERT: &str = "INSERT INTO bare (id, type, payload, run_at)
    SELECT id, 'noop', payload, now() FROM unnest($1::uuid[], $2::text[]) AS u (id, payload)";

const INSERT_ONE: &str =
    "INSERT INTO bare (id, type, payload, run_at) VALUES ($1, 'noop', $2, now())";

const CLAIM: &str = "UPDATE bare SET state = 1 WHERE seq = ANY(ARRAY(
    SELECT seq FROM bare WHERE state = 0 ORDER BY run_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING seq, id, payload";

const COMPLETE: &str = "UPDATE bare SET state = 2, finished_at = now() WHERE seq = ANY($1)";

/// A database made for one run and dropped after it.
#[derive(Debug)]
pub struct Scratch {
    /// The address that the database was made through.
    server: String,
    name: String,
    url: String,
}

impl Scratch {
    /// Makes a new database on the server of an address.
    pub async fn new(url: &str) -> Result<Self, StoreError> {
        let name = format!("matins_bench_{}", Uuid::new_v4().simple());
        let made = async {
            connect(url).await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
            Res::Ok(())
        };
        made.await?;
        Ok(Self { server: url.to_owned(), url: beside(url, &name), name })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs statements in it, for what no store does.
    pub async fn run(&self, sql: &str) -> Result<(), StoreError> {
        Ok(async {
            connect(&self.url).await?.batch_execute(sql).await?;
            Res::Ok(())
        }
        .await?)
    }

    /// A transaction that sees what is there now, until it is dropped.
    pub async fn hold(&self) -> Result<Held, StoreError> {
        Ok(async {
            let client = connect(&self.url).await?;
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
            client.batch_execute(begin).await?;
            Res::Ok(Held { _client: client })
        }
        .await?)
    }

    pub async fn remove(&self) -> Result<(), StoreError> {
        // With FORCE only from PostgreSQL 13 on, which is the oldest one supported.
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        Ok(async {
            connect(&self.server).await?.batch_execute(&drop).await?;
            Res::Ok(())
        }
        .await?)
    }
}

/// What the server says it is.
pub async fn version(url: &str) -> Result<String, StoreError> {
    Ok(async {
        let client = connect(url).await?;
        let row = client.query_one("SELECT current_setting('server_version')", &[]).await?;
        Res::Ok(row.try_get(0)?)
    }
    .await?)
}

/// A session whose snapshot holds vacuum back on the whole server.
#[derive(Debug)]
pub struct Held {
    _client: Client,
}

/// The same address with another database.
fn beside(url: &str, database: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, ""), |(base, query)| (base, query));
    let scheme = base.find("://").map_or(0, |at| at + 3);
    let base = base[scheme..].find('/').map_or(base, |at| &base[..scheme + at]);
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    format!("{base}/{database}{query}")
}

async fn connect(url: &str) -> Res<Client> {
    let (client, connection) = Address::parse(url)?.access()?.connect().await?;
    tokio::spawn(connection);
    Ok(client)
}

/// One connection with its statements.
#[derive(Debug)]
pub struct Bare {
    client: Client,
    insert: Statement,
    insert_one: Statement,
    claim: Statement,
    complete: Statement,
}

impl Bare {
    pub async fn open(scratch: &Scratch) -> Result<Self, StoreError> {
        Ok(Self::connect(scratch).await?)
    }

    async fn connect(scratch: &Scratch) -> Res<Self> {
        let client = connect(&scratch.url).await?;
        client.batch_execute("SET client_min_messages = warning").await?;
        client.batch_execute(SHAPE).await?;
        Ok(Self {
            insert: client.prepare(INSERT).await?,
            insert_one: client.prepare(INSERT_ONE).await?,
            claim: client.prepare(CLAIM).await?,
            complete: client.prepare(COMPLETE).await?,
            client,
        })
    }

    /// One transaction.
    pub async fn insert(&self, payloads: &[String]) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = payloads.iter().map(|_| Uuid::now_v7()).collect();
        let done = self.client.execute(&self.insert, &[&ids, &payloads]).await;
        done.map(drop).map_err(said)
    }

    /// One row, one transaction.
    pub async fn insert_one(&self, payload: &str) -> Result<(), StoreError> {
        let done = self.client.execute(&self.insert_one, &[&Uuid::now_v7(), &payload]).await;
        done.map(drop).map_err(said)
    }

    /// Claims and completes up to `rows`, in two transactions; how many there were.
    pub async fn claim_and_complete(&self, rows: usize) -> Result<usize, StoreError> {
        let most = i64::try_from(rows).unwrap_or(i64::MAX);
        let claimed = self.client.query(&self.claim, &[&most]).await.map_err(said)?;
        let seqs = claimed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>();
        let seqs = seqs.map_err(said)?;
        self.client.execute(&self.complete, &[&seqs]).await.map_err(said)?;
        Ok(seqs.len())
    }

    /// The median time of `n` commits of one row.
    pub async fn commit(&self, n: usize) -> Result<Duration, StoreError> {
        let mut times = Vec::with_capacity(n);
        for _ in 0..n.max(1) {
            let begin = Instant::now();
            self.insert_one("null").await?;
            times.push(begin.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    }
}

fn said(error: tokio_postgres::Error) -> StoreError {
    StoreError::from(Failure::from(error))
}

#[cfg(test)]
mod tests {
    use matins_testbed::Postgres;

    use super::*;

    #[test]
    fn a_scratch_database_lies_beside_the_named_one() {
        for (url, expected) in [
            ("postgres://u:p@h:1/d", "postgres://u:p@h:1/x"),
            ("postgres://h", "postgres://h/x"),
            ("postgres://h/d?a=b", "postgres://h/x?a=b"),
            ("postgres:///d?host=/run", "postgres:///x?host=/run"),
        ] {
            assert_eq!(beside(url, "x"), expected);
        }
    }

    #[tokio::test]
    async fn bare_rows_are_claimed_once_and_the_database_goes_away() {
        let server = Postgres::shared();
        let scratch = Scratch::new(&server.url("postgres")).await.unwrap();
        let bare = Bare::open(&scratch).await.unwrap();
        bare.insert(&["1".to_owned(), "2".to_owned()]).await.unwrap();
        bare.insert_one("3").await.unwrap();
        for left in [2, 1, 0] {
            assert_eq!(bare.claim_and_complete(2).await.unwrap(), left);
        }
        let held = scratch.hold().await.unwrap();
        scratch.run("CREATE TABLE t (n integer)").await.unwrap();
        drop((bare, held));
        let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{}'", scratch.name);
        assert_eq!(server.sql("postgres", &count), "1");
        scratch.remove().await.unwrap();
        assert_eq!(server.sql("postgres", &count), "0");
    }
}
