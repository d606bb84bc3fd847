//! Opening the store that the configuration names.

use std::path::Path;
use std::sync::Arc;

use matins_core::store::{Store, StoreError};
use matins_store::{Options, SqliteStore};

use crate::config::{Config, StoreLocation};
use crate::failure::{Exit, Failure, Result};
use crate::place;

pub(crate) fn path(config: &Config) -> &Path {
    let StoreLocation::Sqlite(path) = &config.store;
    path
}

pub(crate) fn exists(config: &Config) -> bool {
    path(config).exists()
}

/// What whoever only looks is told of a store that is not there.
pub(crate) fn missing(config: &Config) -> Failure {
    Failure::unreachable(format!("no store at {}", path(config).display()))
        .hint("is the path right? matins serve, run and enqueue make a store where there is none")
}

/// Makes `data_dir` if the store lies in it. Any other folder must be there: a store is not put
/// where a mistyped path leads.
pub(crate) fn make_folder(config: &Config) -> Result<()> {
    match path(config).parent() {
        Some(folder) if folder == config.data_dir => place::make(folder),
        _ => Ok(()),
    }
}

/// Opens it, making it in its folder if there is none.
pub(crate) async fn open(config: &Config) -> Result<Arc<dyn Store>> {
    make_folder(config)?;
    let path = path(config).to_owned();
    let migrate = if config.migrate_by_itself {
        matins_store::sqlite::Migrate::Auto
    } else {
        matins_store::sqlite::Migrate::Manual
    };
    let options = Options { migrate, ..Options::default() };
    let opening = tokio::task::spawn_blocking(move || SqliteStore::open(&path, options));
    match opening.await {
        Ok(Ok(store)) => Ok(Arc::new(store)),
        Ok(Err(error)) => Err(refused(config, &error)),
        Err(panic) => Err(Failure::failed(format!("opening the store broke: {panic}"))),
    }
}

pub(crate) fn refused(config: &Config, error: &StoreError) -> Failure {
    let place = path(config).display();
    Failure::new(Exit::Unreachable, format!("the store {place}: {error}"))
}
