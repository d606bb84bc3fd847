//! The schema: forward only, under a lock, each step remembered by its checksum.
//!
//! A step that has been applied may never change. During a rolling upgrade an older node finds a
//! database that is ahead of it: each step is stored with the oldest version that can live with it
//! (`compatible_from`), and a node works on as long as that is not beyond its own: it looks when it
//! opens, and whenever it looks for work. A step that others cannot live with is not made while
//! they are at work.

use std::time::Duration;

use matins_core::store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::address::{Access, Address};
use super::error::{Failure, Res};
use super::link::Switchboard;
use super::sql::Sql;
use super::time::At;
pub use crate::migration::{Migrate, Migration};

macro_rules! step {
    ($version:literal, $number:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("migrations/", $number, "_", $name, ".sql")),
        }
    };
}

pub(super) const ALL: &[Migration] = &[
    step!(1, "0001", "init"),
    step!(2, "0002", "words"),
    step!(3, "0003", "concurrency_keys"),
    step!(4, "0004", "places"),
    step!(5, "0005", "endings"),
    step!(6, "0006", "enqueue"),
    step!(7, "0007", "claim"),
    step!(8, "0008", "settle"),
    step!(9, "0009", "acts"),
    step!(10, "0010", "workers_and_settings"),
    step!(11, "0011", "timetables"),
    step!(12, "0012", "looking"),
    step!(13, "0013", "upkeep"),
    step!(14, "0014", "for_everybody"),
    step!(15, "0015", "alerts"),
    step!(16, "0016", "journal"),
    step!(17, "0017", "outage"),
    step!(18, "0018", "marks"),
    step!(19, "0019", "plans"),
];

/// Steps that programs of earlier versions cannot live with. Every other one only adds: tables,
/// indexes, columns at the end with a default (but none to `task`, `history`, `attempt`, `running`
/// and `slot`, whole rows of which go through functions), functions, or better ones with the same
/// arguments.
const BREAKING: [u32; 1] = [14];

/// The oldest version that can live with a step.
fn compatible_from(version: u32) -> u32 {
    let before = BREAKING.into_iter().filter(|breaking| *breaking <= version);
    before.max().unwrap_or(BREAKING[0])
}

/// The version this program works with.
pub const LATEST: u32 = ALL[ALL.len() - 1].version;

/// `matins`, as a number: whoever holds this lock may change the schema.
const LOCK: i64 = 0x006d_6174_696e_7300;

/// How often a step is tried beside nodes that are at work, and the pause in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// How long a step waits for a table: whoever comes later waits behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";

/// The oldest PostgreSQL that has what is used here.
const SERVER_MIN: i32 = 130_000;

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS matins.migration (
    version         integer PRIMARY KEY,
    name            text NOT NULL,
    checksum        text NOT NULL,
    compatible_from integer NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT clock_timestamp()
)";

/// Steps that a database lacks.
pub async fn pending(url: &str) -> Result<Vec<Migration>, StoreError> {
    let client = connect(url).await?;
    let applied = applied(&client).await.map_err(StoreError::from)?;
    Ok(missing(&applied).to_vec())
}

/// Brings a database up to date. Answers what was done.
pub async fn apply(url: &str) -> Result<Vec<Migration>, StoreError> {
    let client = connect(url).await?;
    Ok(bring_up_to_date(&client).await?)
}

pub(super) async fn connect(url: &str) -> Result<Client, StoreError> {
    let access = Address::parse(url)?.access()?;
    let switchboard = Switchboard::start()
        .map_err(|error| StoreError::Unavailable(format!("no thread for connections: {error}")))?;
    let client = switchboard.open(&access).await?;
    // The thread must outlive the client; both end with the command.
    std::mem::forget(switchboard);
    Ok(client)
}

pub(super) async fn on_open(
    switchboard: &Switchboard,
    access: &Access,
    migrate: Migrate,
) -> Res<Uuid> {
    let client = switchboard.open(access).await?;
    check_server(&client).await?;
    let applied = applied(&client).await?;
    if !missing(&applied).is_empty() {
        if migrate == Migrate::Existing && applied.is_empty() {
            return Err(StoreError::Missing("this database".to_owned()).into());
        }
        if migrate == Migrate::Manual {
            let at = applied.last().copied().unwrap_or(0);
            return Err(Failure::broken(format!(
                "its schema has version {at}, this program needs {LATEST}; run `matins migrate`"
            )));
        }
        bring_up_to_date(&client).await?;
    }
    let row = client.query_typed(Sql::MetaGet.text(), &[]).await?;
    let row = row.first().ok_or_else(|| Failure::broken("the store has no identity"))?;
    Ok(row.try_get(0)?)
}

async fn check_server(client: &Client) -> Res<()> {
    let sql = "SELECT current_setting('server_version_num')::integer,
                      current_setting('server_encoding'), current_setting('server_version')";
    let rows = client.query_typed(sql, &[]).await?;
    let row = rows.first().ok_or_else(|| Failure::broken("the server does not say what it is"))?;
    let (version, encoding, text): (i32, &str, &str) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    if version < SERVER_MIN {
        return Err(Failure::broken(format!(
            "PostgreSQL {text} is too old: 13 or newer is needed"
        )));
    }
    if encoding != "UTF8" {
        return Err(Failure::broken(format!(
            "the database has the encoding {encoding}: UTF8 is needed"
        )));
    }
    Ok(())
}

fn missing(applied: &[i32]) -> &'static [Migration] {
    &ALL[applied.len().min(ALL.len())..]
}

/// The version of a database's schema; 0: it has none.
pub(super) async fn version(client: &Client) -> Res<u32> {
    Ok(applied(client).await?.last().map_or(0, |version| version.cast_unsigned()))
}

/// Versions in the database, checked against this program's.
async fn applied(client: &Client) -> Res<Vec<i32>> {
    let known = "SELECT to_regclass('matins.migration') IS NOT NULL";
    let known = client.query_typed(known, &[]).await?;
    if !known.first().map(|row| row.try_get::<_, bool>(0)).transpose()?.unwrap_or(false) {
        return Ok(Vec::new());
    }
    let sql = "SELECT version, checksum, compatible_from FROM matins.migration ORDER BY version";
    let mut versions = Vec::new();
    for row in client.query_typed(sql, &[]).await? {
        let (version, checksum): (i32, &str) = (row.try_get(0)?, row.try_get(1)?);
        let compatible_from: i32 = row.try_get(2)?;
        match ALL.get(versions.len()) {
            Some(own)
                if i64::from(own.version) == i64::from(version) && own.checksum() == checksum => {}
            Some(_) => {
                return Err(Failure::broken(format!(
                    "step {version} of its schema is not the one this program knows"
                )));
            }
            None => {
                if let Some(why) = outgrown(version, compatible_from) {
                    return Err(Failure::broken(why));
                }
            }
        }
        versions.push(version);
    }
    Ok(versions)
}

/// Why this program cannot live with a step that it does not know; `None`: it can.
pub(super) fn outgrown(version: i32, compatible_from: i32) -> Option<String> {
    (compatible_from.cast_unsigned() > LATEST).then(|| {
        format!(
            "its schema has version {version}, which programs that know less than \
             {compatible_from} cannot use, and this one knows {LATEST}; use a newer matins"
        )
    })
}

/// Programs that are at work could not live with a breaking step, and are not asked again before
/// their next look.
async fn refuse_beside_others(client: &Client, steps: &[Migration]) -> Res<()> {
    let Some(step) = steps.iter().find(|step| BREAKING.contains(&step.version)) else {
        return Ok(());
    };
    let at_work = "SELECT string_agg(name, ', ' ORDER BY name) FROM matins.worker
        WHERE NOT retired AND lease_until >= clock_timestamp()";
    let rows = client.query_typed(at_work, &[]).await?;
    match rows.first().map(|row| row.try_get::<_, Option<&str>>(0)).transpose()?.flatten() {
        Some(names) => Err(Failure::broken(format!(
            "step {} of its schema cannot be made while older programs are at work: stop {names}, \
             or wait until their leases are over",
            step.version
        ))),
        None => Ok(()),
    }
}

/// Other nodes may be at work: a step that meets them crosswise is tried again, and one that waits
/// for a table lets them go on before it asks anew.
async fn bring_up_to_date(client: &Client) -> Res<Vec<Migration>> {
    let mut tries = 0;
    loop {
        client.batch_execute("BEGIN").await?;
        let done = in_transaction(client).await;
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(end).await?;
        match done {
            Err(failure) if tries < TRIES && (failure.is_collision() || failure.is_locked()) => {
                tries += 1;
                tracing::info!(tries, "other nodes are in the way of the schema's next step");
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn in_transaction(client: &Client) -> Res<Vec<Migration>> {
    client.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
    let known = client.query_typed("SELECT to_regnamespace('matins') IS NOT NULL", &[]).await?;
    if !known.first().map(|row| row.try_get::<_, bool>(0)).transpose()?.unwrap_or(false) {
        client.batch_execute("CREATE SCHEMA matins").await?;
    }
    client.batch_execute(LEDGER).await?;
    // Another process may have been quicker.
    let applied = applied(client).await?;
    let missing = missing(&applied);
    client.batch_execute(LOCK_TIMEOUT).await?;
    if !applied.is_empty() {
        refuse_beside_others(client, missing).await?;
    }
    for migration in missing {
        client.batch_execute("SET LOCAL search_path = matins, pg_temp").await?;
        client.batch_execute(migration.sql).await?;
        let number = |version: u32| i32::try_from(version).unwrap_or(i32::MAX);
        let version = number(migration.version);
        client
            .query_typed(
                "INSERT INTO matins.migration (version, name, checksum, compatible_from)
                 VALUES ($1, $2, $3, $4)",
                &[
                    (&version, Type::INT4),
                    (&migration.name, Type::TEXT),
                    (&migration.checksum(), Type::TEXT),
                    (&number(compatible_from(migration.version)), Type::INT4),
                ],
            )
            .await?;
        if migration.version == 1 {
            let id = Uuid::new_v4();
            let sql = "INSERT INTO matins.meta (store_id) VALUES ($1)";
            client.query_typed(sql, &[(&id, Type::UUID)]).await?;
        }
    }
    if !missing.is_empty() {
        let sql = "SELECT matins.make_partitions($1, 3)";
        let now = At(jiff::Timestamp::now());
        client.query_typed(sql, &[(&now, Type::TIMESTAMPTZ)]).await?;
    }
    Ok(missing.to_vec())
}
