//! Where Redis is: one server, one that Sentinels name, or a cluster. Must never put a password
//! into an error or a log.

use std::time::Duration;

use matins_core::store::{Result, StoreError};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, TlsMode};

const EXPECTED: &str = "expected redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for TLS, \
    redis+sentinel://HOST,HOST/MASTER or redis+cluster://HOST,HOST";
const SENTINEL_PORT: u16 = 26_379;

/// Probes of an idle connection, so that a dead one is known even when nothing is asked.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// What was sent and is not acknowledged for this long means that the line is dead.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) enum Address {
    One(Box<ConnectionInfo>),
    Sentinel(Sentinel),
    /// Some of its nodes; they know the others.
    Cluster(Vec<ConnectionInfo>),
}

#[derive(Clone)]
pub(super) struct Sentinel {
    pub(super) sentinels: Vec<ConnectionAddr>,
    pub(super) master: String,
    pub(super) db: i64,
    /// To the servers that they name.
    pub(super) login: Login,
    /// To the sentinels themselves.
    pub(super) own_login: Login,
    pub(super) tls: bool,
}

#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

fn wrong(what: &str) -> StoreError {
    StoreError::Broken(format!("not an address of Redis: {what}; {EXPECTED}"))
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = matches!(base, "rediss" | "valkeys");
        if !tls && !matches!(base, "redis" | "valkey" | "unix") {
            return Err(wrong("its scheme is another"));
        }
        match kind {
            "" | "unix" => Ok(Self::One(Box::new(one(text)?))),
            "cluster" => cluster(base, rest),
            "sentinel" => sentinel(rest, tls),
            _ => Err(wrong("its scheme is another")),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// For people.
    pub(super) fn location(&self) -> String {
        let list = |nodes: Vec<String>| nodes.join(",");
        match self {
            Self::One(info) => format!("redis://{}", place(info.addr())),
            Self::Sentinel(sentinel) => {
                let nodes = sentinel.sentinels.iter().map(place).collect();
                format!("redis+sentinel://{}/{}", list(nodes), sentinel.master)
            }
            Self::Cluster(nodes) => {
                let nodes = nodes.iter().map(|node| place(node.addr())).collect();
                format!("redis+cluster://{}", list(nodes))
            }
        }
    }

    pub(super) fn uses_tls(&self) -> bool {
        let is_tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        match self {
            Self::One(info) => is_tls(info),
            Self::Sentinel(sentinel) => sentinel.tls,
            Self::Cluster(nodes) => nodes.iter().any(is_tls),
        }
    }
}

/// Host and port as an address has them: an IPv6 address stands in brackets.
fn place(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if host.contains(':') =>
        {
            format!("[{host}]:{port}")
        }
        other => other.to_string(),
    }
}

pub(super) fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 5);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}

fn one(url: &str) -> Result<ConnectionInfo> {
    // What the parser says against an address may repeat parts of it.
    let info = url.into_connection_info().map_err(|_| wrong("it cannot be read"))?;
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// `USER:PASSWORD@HOSTS/PATH?QUERY`, as far as they are there.
struct Parts<'t> {
    login: &'t str,
    hosts: Vec<&'t str>,
    path: &'t str,
    query: &'t str,
}

fn parts(rest: &str) -> Result<Parts<'_>> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts: Vec<&str> = hosts.split(',').map(str::trim).collect();
    if hosts.iter().any(|host| host.is_empty()) {
        return Err(wrong("a host is missing"));
    }
    Ok(Parts { login, hosts, path, query })
}

fn cluster(base: &str, rest: &str) -> Result<Address> {
    let Parts { login, hosts, path, query } = parts(rest)?;
    if !path.is_empty() || !query.is_empty() {
        return Err(wrong("a cluster has no database numbers"));
    }
    let at = if login.is_empty() { "" } else { "@" };
    let node = |host: &&str| one(&format!("{base}://{login}{at}{host}"));
    hosts.iter().map(node).collect::<Result<_>>().map(Address::Cluster)
}

fn sentinel(rest: &str, tls: bool) -> Result<Address> {
    let Parts { login, hosts, path, query } = parts(rest)?;
    let (master, db) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err(wrong("the name of the master is missing"));
    }
    let db = if db.is_empty() { Ok(0) } else { db.parse() };
    let db = db.map_err(|_| wrong("the number of the database is none"))?;
    // The parser of plain addresses knows about percent signs and brackets.
    let login_of = |text: &str| -> Result<Login> {
        if text.is_empty() {
            return Ok(Login::default());
        }
        let info = one(&format!("redis://{text}@host"))?;
        let settings = info.redis_settings();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Login { username: owned(settings.username()), password: owned(settings.password()) })
    };
    let mut sentinel_login = "";
    for setting in query.split('&').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some(("sentinel_login", login)) => sentinel_login = login,
            _ => return Err(wrong("of settings there is sentinel_login=USER:PASSWORD alone")),
        }
    }
    let sentinels = hosts.iter().map(|host| address_of(host, tls)).collect::<Result<_>>()?;
    Ok(Address::Sentinel(Sentinel {
        sentinels,
        master: master.to_owned(),
        db,
        login: login_of(login)?,
        own_login: login_of(sentinel_login)?,
        tls,
    }))
}

fn address_of(host: &str, tls: bool) -> Result<ConnectionAddr> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if has_port { String::new() } else { format!(":{SENTINEL_PORT}") };
    let scheme = if tls { "rediss" } else { "redis" };
    Ok(one(&format!("{scheme}://{host}{port}"))?.addr().clone())
}

impl Sentinel {
    pub(super) fn client(&self) -> redis::RedisResult<redis::sentinel::SentinelClient> {
        use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
        let master = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(self.sentinels.clone(), &self.master, master)?
            .set_client_to_redis_db(self.db)
            .set_client_to_redis_tcp_settings(tcp_settings())
            .set_client_to_sentinel_tcp_settings(tcp_settings());
        if let Some(username) = &self.login.username {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = &self.login.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(username) = &self.own_login.username {
            builder = builder.set_client_to_sentinel_username(username);
        }
        if let Some(password) = &self.own_login.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if self.tls {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(TlsMode::Secure);
        }
        builder.build()
    }
}

/// The prefix of every key. On a cluster all keys must lie in one slot, which the part in braces
/// decides.
pub(super) fn prefix(prefix: &str, cluster: bool) -> String {
    match prefix.strip_suffix(':') {
        _ if !cluster || prefix.contains('{') => prefix.to_owned(),
        Some(name) => format!("{{{name}}}:"),
        None => format!("{{{prefix}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str) -> String {
        Address::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).location()
    }

    #[test]
    fn addresses_of_each_kind() {
        for (text, place) in [
            ("redis://h", "redis://h:6379"),
            ("redis://u:p%40@h:7000/3", "redis://h:7000"),
            ("rediss://h", "redis://h:6379"),
            ("valkey://h", "redis://h:6379"),
            ("redis+cluster://a,b:7001", "redis+cluster://a:6379,b:7001"),
            ("rediss+cluster://:p@a", "redis+cluster://a:6379"),
            ("redis+sentinel://a,b:7/m", "redis+sentinel://a:26379,b:7/m"),
            ("redis+sentinel://u:p@[::1]/m/2?sentinel_login=x:y", "redis+sentinel://[::1]:26379/m"),
        ] {
            assert_eq!(location(text), place, "{text}");
        }
    }

    #[test]
    fn logins_are_read() {
        let text = "redis+sentinel://u:p%40@a/m/2?sentinel_login=:y";
        let Ok(Address::Sentinel(sentinel)) = Address::parse(text) else { panic!("a sentinel") };
        assert_eq!(sentinel.login.username.as_deref(), Some("u"));
        assert_eq!(sentinel.login.password.as_deref(), Some("p@"));
        assert_eq!((sentinel.db, sentinel.own_login.password.as_deref()), (2, Some("y")));
        let Ok(Address::Cluster(nodes)) = Address::parse("redis+cluster://u:p@a,b") else {
            panic!("a cluster")
        };
        assert!(nodes.iter().all(|node| node.redis_settings().password() == Some("p")));
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_secrets() {
        for text in [
            "",
            "redis",
            "http://secret@h",
            "redis+x://secret@h",
            "redis+sentinel://secret@h",
            "redis://:secret@h:port",
            "redis+cluster://a,,b",
            "redis+cluster://secret@a/1",
            "redis+sentinel://secret@a/m/x",
            "redis+sentinel://secret@a/m?x=y",
            "redis://",
        ] {
            let Err(error) = Address::parse(text) else { panic!("{text} is taken") };
            let error = error.to_string();
            assert!(error.contains(EXPECTED) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn keys_of_a_cluster_lie_in_one_slot() {
        for (given, single, cluster) in [
            ("matins:", "matins:", "{matins}:"),
            ("a:b:", "a:b:", "{a:b}:"),
            ("app", "app", "{app}"),
            ("{x}y:", "{x}y:", "{x}y:"),
        ] {
            assert_eq!(
                (prefix(given, false), prefix(given, true)),
                (single.into(), cluster.into())
            );
        }
    }
}
