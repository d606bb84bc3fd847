//! Connections: a few that carry the work. Short questions (beats, pings) never wait behind it:
//! `control`.
//!
//! Every verb is one statement, sent with the types of its parameters: nothing is prepared and no
//! session state is relied on, so it works behind a pooler that hands out a session per
//! transaction. Connections live on a thread of their own: whoever opened one may come and go.
//!
//! A verb that meets another one crosswise (deadlock, serialization) is repeated here; a line that
//! breaks is the caller's to hear of, because a write whose answer was lost may have happened.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::address::Access;
use super::error::{Failure, Res};
use super::sql::Sql;

/// How often a verb that met others crosswise is repeated.
pub(super) const REPEATS: u32 = 8;

/// A parameter of a statement.
pub(super) type Param<'p> = &'p (dyn ToSql + Sync);

/// Who a statement can be sent through: a pool, or somebody's own transaction.
pub(super) trait Speaks {
    fn rows(&self, sql: Sql, params: &[Param<'_>]) -> impl Future<Output = Res<Vec<Row>>> + Send;
}

impl Speaks for Pool {
    fn rows(&self, sql: Sql, params: &[Param<'_>]) -> impl Future<Output = Res<Vec<Row>>> + Send {
        Self::rows(self, sql, params)
    }
}

impl Speaks for tokio_postgres::Transaction<'_> {
    async fn rows(&self, sql: Sql, params: &[Param<'_>]) -> Res<Vec<Row>> {
        Ok(self.query_typed(sql.text(), &typed(sql, params)).await?)
    }
}

fn typed<'p>(sql: Sql, params: &[Param<'p>]) -> Vec<(Param<'p>, Type)> {
    debug_assert_eq!(sql.types().len(), params.len(), "{sql:?}");
    params.iter().copied().zip(sql.types().iter().cloned()).collect()
}

/// The thread on which connections live.
#[derive(Debug)]
pub(super) struct Switchboard {
    handle: Handle,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Switchboard {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::Builder::new().name("matins-postgres".to_owned()).spawn(move || {
            // Ends when the last store of this switchboard is dropped.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _stop: stop })
    }

    /// Runs until it ends or is aborted, on that thread.
    pub(super) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.handle.spawn(task).abort_handle()
    }

    pub(super) async fn open(&self, access: &Access) -> Res<Client> {
        let access = access.clone();
        let opened = self.handle.spawn(async move {
            let (client, connection) = access.answered().await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the database broke");
                }
            });
            Ok(client)
        });
        match opened.await {
            Ok(client) => client,
            Err(_) => Err(Failure::unavailable("the store is being closed")),
        }
    }
}

/// Connections that are alike.
#[derive(Debug)]
pub(super) struct Pool {
    switchboard: Arc<Switchboard>,
    access: Access,
    patience: Duration,
    permits: Semaphore,
    idle: Mutex<Vec<Client>>,
    /// Why nobody gets a connection any more.
    barred: Barred,
}

/// Set when the database must not be worked on by this program any more.
pub(super) type Barred = Arc<OnceLock<String>>;

impl Pool {
    pub(super) fn new(
        switchboard: &Arc<Switchboard>,
        access: &Access,
        size: usize,
        patience: Duration,
        barred: &Barred,
    ) -> Self {
        Self {
            switchboard: switchboard.clone(),
            access: access.clone(),
            patience,
            permits: Semaphore::new(size.max(1)),
            idle: Mutex::default(),
            barred: barred.clone(),
        }
    }

    /// A connection of one's own, until it is dropped.
    pub(super) async fn lease(&self) -> Res<Lease<'_>> {
        self.may_speak()?;
        let waited = tokio::time::timeout(self.patience, self.permits.acquire()).await;
        let permit = match waited {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Failure::unavailable("the store is closed")),
            Err(_) => return Err(Failure::unavailable("every connection is busy")),
        };
        let idle = loop {
            let found = self.idle().pop();
            match found {
                Some(client) if client.is_closed() => {}
                found => break found,
            }
        };
        let client = match idle {
            Some(client) => client,
            None => {
                let opened = self.switchboard.open(&self.access);
                let opened = tokio::time::timeout(self.patience, opened).await;
                opened.map_err(|_| Failure::unavailable("connecting takes too long"))??
            }
        };
        Ok(Lease { pool: self, client: Some(client), _permit: permit })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Client>> {
        self.idle.lock().expect("no panic holds it")
    }

    /// An error when this program must not work on the database any more.
    pub(super) fn may_speak(&self) -> Res<()> {
        match self.barred.get() {
            Some(why) => Err(Failure::broken(why.clone())),
            None => Ok(()),
        }
    }

    /// A connection for a transaction of several statements.
    pub(super) async fn open(&self) -> Res<Open<'_>> {
        let mut lease = self.lease().await?;
        let client = lease.client.take().expect("a lease has its connection");
        Ok(Open { lease, client })
    }

    /// An answer that the connection still owes, as long as one is waited for.
    async fn answered<T>(&self, client: &Client, answer: impl Future<Output = T>) -> Res<T> {
        let answer = tokio::time::timeout(self.patience, answer).await;
        answer.map_err(|_| {
            // Whatever swallowed the answer may have done so to the idle ones: the next caller
            // must not wait as long for each of them.
            self.idle().clear();
            let (access, token) = (self.access.clone(), client.cancel_token());
            self.switchboard.handle.spawn(async move { access.cancel(token).await });
            Failure::unavailable(format!("no answer from the database within {:?}", self.patience))
        })
    }

    pub(super) async fn rows(&self, sql: Sql, params: &[Param<'_>]) -> Res<Vec<Row>> {
        let mut repeats = 0;
        loop {
            let mut lease = self.lease().await?;
            match lease.rows(sql, params).await {
                Err(failure) if failure.is_collision() && repeats < REPEATS => {
                    drop(lease);
                    repeats += 1;
                    pause_before(repeats).await;
                }
                answer => return answer,
            }
        }
    }

    pub(super) async fn one(&self, sql: Sql, params: &[Param<'_>]) -> Res<Option<Row>> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    /// Nobody gets a connection any more; those that are idle are closed.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }
}

/// Those that collided do not come all at once again.
pub(super) async fn pause_before(repeat: u32) {
    let pause = rand::random_range(0..4_u64 << repeat);
    tokio::time::sleep(Duration::from_millis(pause)).await;
}

/// A connection in use. It goes back when it is dropped, unless it is broken or in the middle of
/// something.
pub(super) struct Lease<'p> {
    pool: &'p Pool,
    client: Option<Client>,
    _permit: SemaphorePermit<'p>,
}

impl Lease<'_> {
    pub(super) async fn rows(&mut self, sql: Sql, params: &[Param<'_>]) -> Res<Vec<Row>> {
        // Out of the lease while the answer is awaited: a caller who goes away leaves a connection
        // on which an answer is still to come, and that one is not for the next caller.
        let client = self.client.take().expect("a lease has its connection");
        let answer = self.pool.answered(&client, ask(&client, sql, &typed(sql, params))).await?;
        let answer = answer.map_err(Failure::from);
        match &answer {
            // After a failover that closed no connection: others may lead to a server that does.
            Err(failure) if failure.is_read_only() => self.pool.idle().clear(),
            _ => self.client = Some(client),
        }
        answer
    }
}

/// How long a process that is frozen in the middle of a transaction holds up others: the database
/// ends it by itself then.
const HELD: Duration = Duration::from_secs(5);

/// A transaction that goes on between its statements. When it is dropped its connection goes with
/// it, and nothing of it has happened.
pub(super) struct Open<'p> {
    lease: Lease<'p>,
    client: Client,
}

impl Open<'_> {
    /// What is sent before it is answered goes with it.
    pub(super) async fn begin(&self) -> Res<()> {
        let limit = HELD.as_millis();
        let begin = format!(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {limit}; SET LOCAL jit = off"
        );
        Ok(self.within(self.client.batch_execute(&begin)).await??)
    }

    async fn within<T>(&self, answer: impl Future<Output = T>) -> Res<T> {
        self.lease.pool.answered(&self.client, answer).await
    }

    pub(super) async fn commit(self) -> Res<()> {
        self.end("COMMIT").await
    }

    pub(super) async fn roll_back(self) -> Res<()> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &str) -> Res<()> {
        self.within(self.client.batch_execute(how)).await??;
        self.lease.client = Some(self.client);
        Ok(())
    }
}

impl Speaks for Open<'_> {
    async fn rows(&self, sql: Sql, params: &[Param<'_>]) -> Res<Vec<Row>> {
        let typed = typed(sql, params);
        Ok(self.within(self.client.query_typed(sql.text(), &typed)).await??)
    }
}

/// One statement, within its time limit if it has one: the database itself gives up then, whatever
/// has become of this process. Everything is sent at once, so a limit costs no round trip.
///
/// Statements with a limit look at much and find little. The planner takes them for long ones, and
/// compiling them would take longer than all the rest.
async fn ask(
    client: &Client,
    sql: Sql,
    params: &[(Param<'_>, Type)],
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let answer = client.query_typed(sql.text(), params);
    let Some(limit) = sql.limit() else { return answer.await };
    let limit = limit.as_millis();
    let begin = format!("BEGIN; SET LOCAL statement_timeout = {limit}; SET LOCAL jit = off");
    let (begun, answer, ended) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        answer,
        client.batch_execute("COMMIT"),
    );
    begun?;
    let answer = answer?;
    ended?;
    Ok(answer)
}

impl Deref for Lease<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("a lease has its connection")
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && !client.is_closed()
            && !self.pool.permits.is_closed()
        {
            self.pool.idle().push(client);
        }
    }
}
