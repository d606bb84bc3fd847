//! Opening the store that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use matins_core::outage::Seal;
use matins_core::store::{Store, StoreError};
use matins_store::postgres::schema::Difference;
use matins_store::{
    Migrate, Migration, PostgresStore, RedisStore, SqliteStore, postgres, redis, sqlite,
};

use crate::config::{Config, RedisPlace, StoreLocation};
use crate::failure::{Exit, Failure, Result};
use crate::place;

/// The file of the store, if it is one.
pub(crate) fn file(config: &Config) -> Option<&Path> {
    match &config.store {
        StoreLocation::Sqlite(path) => Some(path),
        StoreLocation::Postgres(_) => None,
    }
}

/// Where the store is, for people: without secrets.
pub(crate) fn shown(config: &Config) -> String {
    match &config.store {
        StoreLocation::Sqlite(path) => format!("sqlite:{}", path.display()),
        StoreLocation::Postgres(url) => {
            postgres::location(&url.0).unwrap_or_else(|_| "postgres".to_owned())
        }
    }
}

/// Whether there may be something to look at. A database is asked itself.
pub(crate) fn exists(config: &Config) -> bool {
    file(config).is_none_or(Path::exists)
}

/// What whoever only looks is told of a store that is not there.
pub(crate) fn missing(config: &Config) -> Failure {
    let (place, part) = match file(config) {
        Some(path) => (path.display().to_string(), "path"),
        None => (shown(config), "database"),
    };
    Failure::unreachable(format!("no store at {place}")).hint(format!(
        "is the {part} right? matins migrate makes a store where there is none, and so do \
         matins serve, run and enqueue"
    ))
}

/// Makes `data_dir` if the store lies in it. Any other folder must be there: a store is not put
/// where a mistyped path leads.
pub(crate) fn make_folder(config: &Config) -> Result<()> {
    match file(config).and_then(Path::parent) {
        Some(folder) if folder == config.data_dir => place::make(folder),
        _ => Ok(()),
    }
}

/// Opens it, making it in its folder if there is none.
pub(crate) async fn open(config: &Config) -> Result<Arc<dyn Store>> {
    open_with(config, None).await
}

/// Opens it for whoever only looks: where there is none, none is made.
pub(crate) async fn open_existing(config: &Config) -> Result<Arc<dyn Store>> {
    let migrate = if config.migrate_by_itself { Migrate::Existing } else { Migrate::Manual };
    open_as(config, migrate, None).await
}

/// A server, which has a spool for what it promises while the database is away.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) spool: PathBuf,
}

pub(crate) async fn open_with(config: &Config, node: Option<Node>) -> Result<Arc<dyn Store>> {
    make_folder(config)?;
    let migrate = if config.migrate_by_itself { Migrate::Auto } else { Migrate::Manual };
    open_as(config, migrate, node).await
}

async fn open_as(config: &Config, migrate: Migrate, node: Option<Node>) -> Result<Arc<dyn Store>> {
    let opened: std::result::Result<Arc<dyn Store>, StoreError> = match &config.store {
        StoreLocation::Sqlite(path) => {
            let path = path.clone();
            let options = sqlite::Options { migrate, ..sqlite::Options::default() };
            blocking(move || SqliteStore::open(&path, options)).await?.map(|store| {
                let store: Arc<dyn Store> = Arc::new(store);
                store
            })
        }
        StoreLocation::Postgres(url) => {
            let connections = config.store_connections;
            let options = postgres::Options { migrate, connections, ..Default::default() };
            match &config.redis {
                Some(redis) => with_redis(&url.0, options, config, redis, node).await,
                None => PostgresStore::open(&url.0, options).await.map(|store| {
                    let store: Arc<dyn Store> = Arc::new(store);
                    store
                }),
            }
        }
    };
    opened.map_err(|error| refused(config, &error))
}

async fn with_redis(
    url: &str,
    connections: postgres::Options,
    config: &Config,
    redis: &RedisPlace,
    node: Option<Node>,
) -> std::result::Result<Arc<dyn Store>, StoreError> {
    let name = node.as_ref().map(|node| node.name.clone()).unwrap_or_default();
    let outage = node.map(|node| redis::OutageOptions {
        spool: node.spool,
        after: redis.outage_after,
        accept_volatile: redis.accept_volatile,
        seal: Seal::new(redis.journal_key.as_ref().map(|key| &*key.0)),
    });
    let mirror = redis.mirror.map(|mirror| redis::MirrorOptions {
        horizon: mirror.horizon,
        tasks: usize::try_from(mirror.tasks).unwrap_or(usize::MAX),
        bytes: mirror.bytes,
        window: redis.outage_window,
        node: name,
        types: Arc::new(config.rules.types.keys().cloned().collect()),
    });
    let prefix = redis.prefix.clone();
    let options = redis::Options { prefix, outage, mirror, ..Default::default() };
    let opening = Box::pin(RedisStore::open_both(url, connections, &redis.url.0, options));
    Ok(Arc::new(opening.await?))
}

/// Steps of the schema that the store lacks.
pub(crate) async fn pending(config: &Config) -> Result<Vec<Migration>> {
    let pending = match &config.store {
        StoreLocation::Sqlite(path) => {
            let path = path.clone();
            blocking(move || sqlite::migrate::pending(&path)).await?
        }
        StoreLocation::Postgres(url) => postgres::migrate::pending(&url.0).await,
    };
    pending.map_err(|error| refused(config, &error))
}

/// Brings the schema up to date; answers what was done.
pub(crate) async fn migrate(config: &Config) -> Result<Vec<Migration>> {
    make_folder(config)?;
    let done = match &config.store {
        StoreLocation::Sqlite(path) => {
            let path = path.clone();
            blocking(move || sqlite::migrate::apply(&path)).await?
        }
        StoreLocation::Postgres(url) => postgres::migrate::apply(&url.0).await,
    };
    done.map_err(|error| refused(config, &error))
}

/// What of the schema is not as this program made it. `None`: it has another version, or the store
/// is a file, which only this program writes to.
pub(crate) async fn differences(config: &Config) -> Result<Option<Vec<Difference>>> {
    match &config.store {
        StoreLocation::Sqlite(_) => Ok(None),
        StoreLocation::Postgres(url) => {
            let compared = postgres::schema::compare(&url.0).await;
            compared.map_err(|error| refused(config, &error))
        }
    }
}

/// Puts right what can be; answers that, and what is left.
pub(crate) async fn repair(config: &Config) -> Result<Option<(Vec<Difference>, Vec<Difference>)>> {
    match &config.store {
        StoreLocation::Sqlite(_) => Ok(Some((Vec::new(), Vec::new()))),
        StoreLocation::Postgres(url) => {
            let repaired = postgres::schema::repair(&url.0).await;
            repaired.map_err(|error| refused(config, &error))
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|panic| Failure::failed(format!("opening the store broke: {panic}")))
}

pub(crate) fn refused(config: &Config, error: &StoreError) -> Failure {
    let message = match (error, file(config)) {
        (StoreError::Missing(_), _) => return missing(config),
        (_, Some(path)) => format!("the store {}: {error}", path.display()),
        (_, None) => named(&error.to_string(), &shown(config)),
    };
    let failure = Failure::new(Exit::Unreachable, message);
    match (error, &config.store) {
        (StoreError::Unavailable(_), StoreLocation::Postgres(_)) => failure.hint(away(config)),
        _ => failure,
    }
}

/// An error that names the place, as most do by themselves.
fn named(error: &str, place: &str) -> String {
    if error.contains(place) { error.to_owned() } else { format!("{place}: {error}") }
}

/// What to do while PostgreSQL does not answer.
fn away(config: &Config) -> String {
    const LOOK: &str = "does PostgreSQL run there, and does psql get in?";
    if config.redis.is_none() {
        return format!(
            "{LOOK} A server that runs needs no restart: it goes on when PostgreSQL answers"
        );
    }
    let server = place::ServerFile::live(config).map(|server| server.url);
    let server = server.or_else(|| config.public_url.clone());
    let url = server.unwrap_or_else(|| "http://HOST:PORT".to_owned());
    format!("{LOOK} Meanwhile a server with Redis takes tasks in: add --server {url}")
}
