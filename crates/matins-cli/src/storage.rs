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
    let place = file(config).map_or_else(|| shown(config), |path| path.display().to_string());
    Failure::unreachable(format!("no store at {place}"))
        .hint("is the path right? matins serve, run and enqueue make a store where there is none")
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

/// For a node, which has a spool for what it promises while the database is away.
pub(crate) async fn open_with(config: &Config, spool: Option<PathBuf>) -> Result<Arc<dyn Store>> {
    make_folder(config)?;
    let migrate = if config.migrate_by_itself { Migrate::Auto } else { Migrate::Manual };
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
                Some(redis) => with_redis(&url.0, options, redis, spool).await,
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
    redis: &RedisPlace,
    spool: Option<PathBuf>,
) -> std::result::Result<Arc<dyn Store>, StoreError> {
    let outage = spool.map(|spool| redis::OutageOptions {
        spool,
        after: redis.outage_after,
        accept_volatile: redis.accept_volatile,
        seal: Seal::new(redis.journal_key.as_ref().map(|key| &*key.0)),
    });
    let options = redis::Options { prefix: redis.prefix.clone(), outage, ..Default::default() };
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
    let message = match file(config) {
        Some(path) => format!("the store {}: {error}", path.display()),
        // Its errors name the place.
        None => error.to_string(),
    };
    Failure::new(Exit::Unreachable, message)
}
