//! TLS to the database: what is encrypted, whom the address trusts, and what it refuses.

#![cfg(feature = "postgres")]

use std::path::Path;
use std::time::Duration;

use matins_store::PostgresStore;
use matins_store::postgres::Options;
use matins_testbed::{Authority, Postgres};

/// A server that only speaks TLS, with a certificate for `localhost` alone.
struct Bed {
    authority: Authority,
    server: Postgres,
}

impl Bed {
    fn new(hba: &str) -> Self {
        let authority = Authority::new("the right one");
        let issued = authority.issue("db", "DNS:localhost");
        let hba = authority.write("hba.conf", hba);
        let ca =
            authority.write("clients.pem", &std::fs::read_to_string(authority.cert()).unwrap());
        let setting = |name: &str, file: &Path| format!("{name}={}", file.display());
        let settings = [
            "ssl=on".to_owned(),
            setting("ssl_cert_file", &issued.cert),
            setting("ssl_key_file", &issued.key),
            setting("ssl_ca_file", &ca),
            setting("hba_file", &hba),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let server = Postgres::start(&settings);
        Self { authority, server }
    }

    fn url(&self, host: &str, query: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?{query}", self.server.port())
    }

    async fn open(&self, host: &str, query: &str) -> Result<PostgresStore, String> {
        let opened = PostgresStore::open(&self.url(host, query), Options::default()).await;
        opened.map_err(|error| error.to_string())
    }

    /// Sessions of ours that are encrypted, and all of them.
    fn sessions(&self) -> (usize, usize) {
        let sql = "SELECT count(*) FILTER (WHERE s.ssl), count(*) FROM pg_stat_activity AS a \
                   JOIN pg_stat_ssl AS s USING (pid) WHERE a.application_name = 'matins'";
        let said = self.server.sql("postgres", sql);
        let (encrypted, all) = said.split_once('|').unwrap();
        (encrypted.parse().unwrap(), all.parse().unwrap())
    }
}

const TLS_ONLY: &str = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n";

#[tokio::test]
async fn the_address_decides_whose_certificate_is_good() {
    let bed = Bed::new(TLS_ONLY);
    let right = bed.authority.cert();
    let wrong = Authority::new("another one");
    let (right, wrong) = (right.display(), wrong.cert());
    let wrong = wrong.display();
    // `Err`: what the message names.
    let cases: &[(&str, &str, Result<(), &str>)] = &[
        ("localhost", "", Ok(())),
        ("localhost", "sslmode=prefer", Ok(())),
        ("127.0.0.1", "sslmode=require", Ok(())),
        ("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={right}"), Ok(())),
        ("127.0.0.1", &format!("sslmode=require&sslrootcert={right}"), Ok(())),
        ("localhost", &format!("sslmode=verify-full&sslrootcert={right}"), Ok(())),
        (
            "127.0.0.1",
            &format!("sslmode=verify-full&sslrootcert={right}"),
            Err("not valid for name"),
        ),
        ("localhost", &format!("sslmode=verify-full&sslrootcert={wrong}"), Err("UnknownIssuer")),
        ("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={wrong}"), Err("UnknownIssuer")),
        ("127.0.0.1", &format!("sslmode=require&sslrootcert={wrong}"), Err("UnknownIssuer")),
        ("localhost", "sslmode=verify-full", Err("UnknownIssuer")),
        ("localhost", "sslmode=verify-full&sslrootcert=/no/such.pem", Err("sslrootcert: /no/such")),
        ("127.0.0.1", "sslmode=disable", Err("no pg_hba.conf entry")),
    ];
    for (host, query, expected) in cases {
        match (bed.open(host, query).await, expected) {
            (Ok(store), Ok(())) => drop(store),
            (Err(said), Err(part)) => assert!(said.contains(part), "{host} {query}: {said}"),
            (got, _) => panic!("{host} {query}: {got:?}"),
        }
    }
}

#[tokio::test]
async fn every_connection_is_encrypted_and_the_one_that_listens_too() {
    let bed = Bed::new(TLS_ONLY);
    let query = format!("sslmode=verify-full&sslrootcert={}", bed.authority.cert().display());
    let store = bed.open("localhost", &query).await.unwrap();
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        assert!(store.check_invariants().await.unwrap().is_empty());
        let (encrypted, all) = bed.sessions();
        assert_eq!(encrypted, all, "a connection in the open");
        if all >= 2 {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "nobody listens");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let listens = "SELECT count(*) FROM pg_stat_activity AS a JOIN pg_stat_ssl AS s USING (pid) \
                   WHERE s.ssl AND a.application_name = 'matins' AND a.query LIKE 'LISTEN matins%'";
    assert_eq!(bed.server.sql("postgres", listens), "1");
}

#[tokio::test]
async fn a_client_shows_the_certificate_that_its_address_names() {
    let hba =
        "local all all trust\nhostssl all postgres 127.0.0.1/32 trust clientcert=verify-full\n";
    let bed = Bed::new(hba);
    let ann = bed.authority.issue("ann", "DNS:ann");
    let own = bed.authority.issue("postgres", "DNS:client");
    let query = |cert: &Path, key: &Path| {
        format!("sslmode=require&sslcert={}&sslkey={}", cert.display(), key.display())
    };
    bed.open("localhost", &query(&own.cert, &own.key)).await.unwrap();
    let said = bed.open("localhost", &query(&ann.cert, &ann.key)).await.unwrap_err();
    assert!(said.contains("(28000)"), "somebody else's: {said}");
    let said = bed.open("localhost", "sslmode=require").await.unwrap_err();
    assert!(said.contains("(28000)"), "none: {said}");
    let said = bed.open("localhost", &query(&own.cert, &ann.key)).await.unwrap_err();
    assert!(said.contains("sslcert and sslkey"), "not a pair: {said}");
    let said = bed.open("localhost", &query(&own.cert, &own.cert)).await.unwrap_err();
    assert!(said.contains("sslkey"), "no key: {said}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_the_address_wants_it() {
    let server = Postgres::shared();
    let url = server.database("template1");
    PostgresStore::open(&format!("{url}?sslmode=prefer"), Options::default()).await.unwrap();
    for mode in ["require", "verify-full"] {
        let opened =
            PostgresStore::open(&format!("{url}?sslmode={mode}"), Options::default()).await;
        let said = opened.unwrap_err().to_string();
        assert!(said.contains("TLS"), "{mode}: {said}");
    }
}
