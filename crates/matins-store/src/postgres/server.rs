//! How a server is set up, for whoever asks whether the promises of a store can be kept on it.

use matins_core::store::StoreError;

use super::address::Address;
use super::error::{Failure, Res};

/// What the server says of itself, to a session such as those of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub version: String,
    /// Settings without which what was committed may be gone after a crash: name and value.
    pub durability: Vec<(String, String)>,
    /// Sessions that it allows to those who are no superusers.
    pub sessions_max: u32,
    /// Sessions that there are.
    pub sessions: u32,
}

const LOOK: &str = "SELECT current_setting('server_version'),
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer,
    (SELECT count(*)::integer FROM pg_catalog.pg_stat_activity
        WHERE backend_type = 'client backend')";

const DURABILITY: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

impl Server {
    /// Asks the server of an address, whatever is in the database.
    pub async fn look(url: &str) -> Result<Self, StoreError> {
        Ok(look(url).await?)
    }

    /// The settings that are not as they must be.
    pub fn unsafe_settings(&self) -> impl Iterator<Item = &(String, String)> {
        self.durability.iter().filter(|(_, value)| value == "off")
    }
}

async fn look(url: &str) -> Res<Server> {
    let (client, connection) = Address::parse(url)?.access()?.answered().await?;
    tokio::spawn(connection);
    let rows = client.query_typed(LOOK, &[]).await?;
    let row = rows.first().ok_or_else(|| Failure::broken("the server does not say what it is"))?;
    let mut durability = Vec::new();
    for name in DURABILITY {
        let rows = client.query_typed(&format!("SELECT current_setting('{name}')"), &[]).await?;
        let value = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        durability.push((name.to_owned(), value));
    }
    let count = |index| row.try_get::<_, i32>(index).map(|n| u32::try_from(n).unwrap_or(0));
    Ok(Server {
        version: row.try_get(0)?,
        durability,
        sessions_max: count(1)?,
        sessions: count(2)?,
    })
}

#[cfg(test)]
mod tests {
    use matins_testbed::Postgres;

    use super::*;

    #[tokio::test]
    async fn a_server_says_how_it_is_set_up() {
        let postgres = Postgres::shared();
        let url = postgres.database("template1");
        let name = url.rsplit('/').next().unwrap();
        let found = Server::look(&url).await.unwrap();
        assert!(found.version.starts_with(|c: char| c.is_ascii_digit()), "{found:?}");
        assert!(found.sessions >= 1 && found.sessions_max > found.sessions, "{found:?}");
        let of =
            |found: &Server| found.durability.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
        assert_eq!(of(&found), DURABILITY);
        // Somebody has made it quick for his own sessions.
        postgres.sql("postgres", &format!("ALTER DATABASE {name} SET synchronous_commit = off"));
        let found = Server::look(&url).await.unwrap();
        let unsafe_settings: Vec<_> = found.unsafe_settings().map(|(name, _)| &**name).collect();
        assert!(unsafe_settings.contains(&"synchronous_commit"), "{found:?}");
    }
}
