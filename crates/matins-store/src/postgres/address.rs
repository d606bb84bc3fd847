//! Where a database is and how it is reached: the address as libpq writes it, TLS included.
//!
//! | `sslmode` | encrypted | who the server is |
//! |---|---|---|
//! | `disable` | no | not asked |
//! | `prefer` (when nothing is said) | if the server can | not asked |
//! | `require` | yes | not asked, unless `sslrootcert` is given: then as `verify-ca` |
//! | `verify-ca` | yes | a certificate of `sslrootcert`, or of an authority this host trusts |
//! | `verify-full` | yes | the same, and it is for the host that was called |
//!
//! Must never put an address into an error as it is: it may hold a password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use matins_core::store::{Result, StoreError};
use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{Failure, Res};
use super::tls;

/// How long a server may take to greet whoever connects: one that is frozen never does.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A connection as it comes out of [`Access::connect`].
pub type Line = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// An address that can be understood.
#[derive(Clone)]
pub struct Address {
    config: Config,
    tls: TlsWish,
    /// A pooler that hands out a session per transaction stands in between, so that nothing may
    /// be asked of a session.
    pub pooled: bool,
}

/// An address with its certificates read.
#[derive(Clone)]
pub struct Access {
    config: Config,
    tls: MakeRustlsConnect,
}

/// What is asked of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Judge {
    #[default]
    Nothing,
    Authority,
    AuthorityAndHost,
}

/// What an address says of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TlsWish {
    pub(super) judge: Judge,
    /// `None`: the authorities that this host trusts.
    pub(super) authorities: Option<PathBuf>,
    /// Certificate and key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
}

impl Address {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE?…`; opens nothing.
    pub fn parse(url: &str) -> Result<Self> {
        let (base, own) = split(url)?;
        // What stands behind the first one would pass for the host, and be shown.
        if let Some((_, rest)) = base.split_once("://")
            && rest.split('/').next().is_some_and(|place| place.matches('@').count() > 1)
        {
            return Err(StoreError::Broken(
                "not an address of a database: more than one @ before the database's name; one in a \
                 password is written %40, and a / as %2F"
                    .to_owned(),
            ));
        }
        let mut config = Config::from_str(&base).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let cause = cause.unwrap_or_default();
            StoreError::Broken(format!(
                "not an address of a database{cause}: expected \
                 postgres://USER:PASSWORD@HOST/DATABASE"
            ))
        })?;
        let (mode, judge) = own.mode()?;
        config.ssl_mode(mode);
        if config.get_application_name().is_none() {
            config.application_name("matins");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        config.keepalives_idle(Duration::from_secs(10));
        config.tcp_user_timeout(Duration::from_secs(20));
        let authorities = own.root.filter(|path| path != "system").map(PathBuf::from);
        let client = match (own.cert, own.key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            (Some(_), None) => return Err(refused("sslcert", "needs sslkey beside it")),
            (None, Some(_)) => return Err(refused("sslkey", "needs sslcert beside it")),
        };
        Ok(Self { config, tls: TlsWish { judge, authorities, client }, pooled: own.pooled })
    }

    /// Reads the certificates that the address names.
    pub fn access(&self) -> Result<Access> {
        // Without TLS nothing of it is needed, not even that this host trusts anybody.
        let wish = match self.config.get_ssl_mode() {
            SslMode::Disable => &TlsWish::default(),
            _ => &self.tls,
        };
        Ok(Access { config: self.config.clone(), tls: tls::connector(wish)? })
    }

    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    /// Where it is, without secrets.
    pub fn location(&self) -> String {
        let config = &self.config;
        let hosts: Vec<String> = config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(index, host)| {
                let ports = config.get_ports();
                let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
                match host {
                    Host::Tcp(name) => format!("{name}:{port}"),
                    Host::Unix(path) => format!("{}:{port}", path.display()),
                }
            })
            .collect();
        let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
        format!("postgres://{}/{database}", hosts.join(","))
    }
}

impl Access {
    pub async fn connect(&self) -> std::result::Result<(Client, Line), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// The same, in vain when the server takes the connection and then says nothing.
    pub(super) async fn answered(&self) -> Res<(Client, Line)> {
        let connected = tokio::time::timeout(ANSWER_LIMIT, self.connect()).await;
        let silent = || format!("it has not answered for {} s", ANSWER_LIMIT.as_secs());
        Ok(connected.map_err(|_| Failure::unavailable(silent()))??)
    }

    /// Asks the server to end what a connection waits for.
    pub async fn cancel(
        &self,
        token: CancelToken,
    ) -> std::result::Result<(), tokio_postgres::Error> {
        token.cancel_query(self.tls.clone()).await
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

/// The parameters that the driver does not know, or knows otherwise.
#[derive(Default)]
struct Own {
    mode: Option<String>,
    root: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    pooled: bool,
}

impl Own {
    fn mode(&self) -> Result<(SslMode, Judge)> {
        Ok(match self.mode.as_deref() {
            None | Some("prefer") => (SslMode::Prefer, Judge::Nothing),
            Some("disable") => (SslMode::Disable, Judge::Nothing),
            Some("require") if self.root.is_some() => (SslMode::Require, Judge::Authority),
            Some("require") => (SslMode::Require, Judge::Nothing),
            Some("verify-ca") => (SslMode::Require, Judge::Authority),
            Some("verify-full") => (SslMode::Require, Judge::AuthorityAndHost),
            Some(_) => {
                let known = "expected disable, prefer, require, verify-ca or verify-full";
                return Err(refused("sslmode", known));
            }
        })
    }
}

fn refused(name: &str, message: &str) -> StoreError {
    StoreError::Broken(format!("the parameter {name} of the database's address: {message}"))
}

/// The address without our own parameters, and these.
fn split(url: &str) -> Result<(String, Own)> {
    let mut own = Own::default();
    let Some((base, query)) = url.split_once('?') else { return Ok((url.to_owned(), own)) };
    let mut rest = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let slot = match name {
            "sslmode" => &mut own.mode,
            "sslrootcert" => &mut own.root,
            "sslcert" => &mut own.cert,
            "sslkey" => &mut own.key,
            "pgbouncer" => {
                own.pooled = match value {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(refused(name, "expected true or false")),
                };
                continue;
            }
            _ => {
                rest.push(part);
                continue;
            }
        };
        let value = percent_decode_str(value).decode_utf8();
        let value = value.map_err(|_| refused(name, "expected UTF-8"))?;
        if value.is_empty() {
            return Err(refused(name, "expected a value"));
        }
        if slot.replace(value.into_owned()).is_some() {
            return Err(refused(name, "is given twice"));
        }
    }
    let rest = rest.join("&");
    Ok((if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") }, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_whether_a_pooler_stands_in_between() {
        let cases = [
            ("postgres://h/d", false),
            ("postgres://h/d?pgbouncer=true", true),
            ("postgres://h/d?connect_timeout=3&pgbouncer=1&options=-c%20jit%3Doff", true),
            ("postgres://h/d?pgbouncer=false", false),
        ];
        for (url, pooled) in cases {
            assert_eq!(Address::parse(url).unwrap().pooled, pooled, "{url}");
        }
        assert!(Address::parse("postgres://h/d?pgbouncer=maybe").is_err());
    }

    #[test]
    fn an_address_says_how_the_server_is_judged() {
        let cases = [
            ("", SslMode::Prefer, Judge::Nothing),
            ("?sslmode=disable", SslMode::Disable, Judge::Nothing),
            ("?sslmode=prefer", SslMode::Prefer, Judge::Nothing),
            ("?sslmode=require", SslMode::Require, Judge::Nothing),
            ("?sslmode=require&sslrootcert=/ca.pem", SslMode::Require, Judge::Authority),
            ("?sslmode=verify-ca", SslMode::Require, Judge::Authority),
            ("?sslmode=verify-full", SslMode::Require, Judge::AuthorityAndHost),
        ];
        for (query, mode, judge) in cases {
            let address = Address::parse(&format!("postgres://h/d{query}")).unwrap();
            assert_eq!(
                (address.config.get_ssl_mode(), address.tls.judge),
                (mode, judge),
                "{query}"
            );
        }
        let files = "postgres://h/d?sslrootcert=/a%20b/ca.pem&sslcert=/c.pem&sslkey=/k.pem";
        let tls = Address::parse(files).unwrap().tls;
        assert_eq!(tls.authorities, Some("/a b/ca.pem".into()));
        assert_eq!(tls.client, Some(("/c.pem".into(), "/k.pem".into())));
        let system = Address::parse("postgres://h/d?sslmode=verify-full&sslrootcert=system");
        assert_eq!(system.unwrap().tls.authorities, None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_the_name_of_the_parameter() {
        for (query, name) in [
            ("sslmode=allow", "sslmode"),
            ("sslmode=verify_full", "sslmode"),
            ("sslmode=require&sslmode=disable", "sslmode"),
            ("sslcert=/c.pem", "sslcert"),
            ("sslkey=/k.pem", "sslkey"),
            ("sslrootcert=", "sslrootcert"),
            ("sslcrl=/crl.pem", "sslcrl"),
        ] {
            let error = Address::parse(&format!("postgres://u:secret@h/d?{query}")).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(name) && !error.contains("secret"), "{query}: {error}");
        }
    }

    #[test]
    fn a_password_with_a_sign_of_its_own_is_written_in_percent() {
        for url in
            ["postgres://bob:top@secret@h:5432/d", "postgres://bob:a@b@c@h/d?sslmode=disable"]
        {
            let refused = Address::parse(url).unwrap_err().to_string();
            assert!(refused.contains("%40") && !refused.contains("secret"), "{refused}");
        }
        assert_eq!(
            Address::parse("postgres://b:t%40p@h/d").unwrap().location(),
            "postgres://h:5432/d"
        );
    }

    #[test]
    fn a_place_has_no_secrets() {
        let address = Address::parse("postgres://ann:secret@db.example:6432/jobs?sslmode=disable");
        let address = address.unwrap();
        assert_eq!(address.location(), "postgres://db.example:6432/jobs");
        assert!(!format!("{address:?}").contains("secret"));
        let error = Address::parse("postgres://ann:secret@db.example:x/jobs").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
