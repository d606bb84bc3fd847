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
    /// Who keeps vacuum from removing what is dead, the oldest first.
    pub holders: Vec<Holder>,
}

/// Somebody who may still want to see rows that are dead to all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub who: String,
    pub seconds: u64,
    /// What ends it.
    pub release: String,
}

const HOLDERS: &str = "SELECT * FROM (
        SELECT format('session %s of %s%s, %s', pid, coalesce(usename, '?'),
                      coalesce(' (' || nullif(application_name, '') || ')', ''), state) AS who,
               extract(epoch FROM clock_timestamp() - xact_start)::bigint AS seconds,
               format('SELECT pg_terminate_backend(%s)', pid) AS release
        FROM pg_catalog.pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
          AND backend_type = 'client backend'
        UNION ALL
        SELECT format('prepared transaction %L', gid),
               extract(epoch FROM clock_timestamp() - prepared)::bigint,
               format('ROLLBACK PREPARED %L', gid)
        FROM pg_catalog.pg_prepared_xacts
    ) AS holder WHERE seconds IS NOT NULL ORDER BY seconds DESC LIMIT 10";

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
    let mut holders = Vec::new();
    for row in client.query_typed(HOLDERS, &[]).await? {
        let seconds: i64 = row.try_get(1)?;
        let (who, release) = (row.try_get(0)?, row.try_get(2)?);
        holders.push(Holder { who, seconds: seconds.unsigned_abs(), release });
    }
    let count = |index| row.try_get::<_, i32>(index).map(|n| u32::try_from(n).unwrap_or(0));
    Ok(Server {
        version: row.try_get(0)?,
        durability,
        sessions_max: count(1)?,
        sessions: count(2)?,
        holders,
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

    /// H10: somebody else's long transaction keeps dead rows alive.
    #[tokio::test]
    async fn who_holds_an_old_snapshot_is_named() {
        let postgres = Postgres::shared();
        let url = postgres.database("template1");
        let (client, connection) =
            Address::parse(&url).unwrap().access().unwrap().answered().await.unwrap();
        tokio::spawn(connection);
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let holds = async || {
            let found = Server::look(&url).await.unwrap().holders;
            let release = format!("SELECT pg_terminate_backend({pid})");
            found.into_iter().find(|holder| holder.release == release)
        };
        assert_eq!(holds().await, None);
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        client.batch_execute(begin).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1_600)).await;
        let holder = holds().await.expect("it is named");
        assert!(holder.seconds >= 1 && holder.who.contains("idle in transaction"), "{holder:?}");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(holds().await, None);
    }
}
