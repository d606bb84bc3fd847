//! The servers that a store lies on: whether they are set up so that its promises can be kept.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use matins_store::postgres::schema::{Difference, Problem};
use matins_store::postgres::server::{Holder, Server};
use matins_store::redis::Glance;

use super::{Finding, Verdict, finding};
use crate::config::{Config, StoreLocation};
use crate::session::now;
use crate::storage;

pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let StoreLocation::Postgres(url) = &config.store {
        match Server::look(&url.0).await {
            Ok(server) => {
                findings.push(durability(&server));
                findings.push(vacuum(&server));
                findings.push(connections(config, &server).await);
            }
            Err(error) => {
                findings.push(super::broken("postgresql", storage::refused(config, &error)));
                findings.extend(redis(config).await);
                return findings;
            }
        }
        findings.extend(store_clock(config).await);
        findings.extend(schema(config).await);
    }
    findings.extend(redis(config).await);
    findings
}

/// Whether what was committed is there after a crash.
fn durability(server: &Server) -> Finding {
    let about = "postgresql";
    let version = format!("version {}", server.version);
    let off: Vec<&str> = server.unsafe_settings().map(|(name, _)| &**name).collect();
    if off.is_empty() {
        return finding(about, Verdict::Good, format!("{version}, keeps what it has committed"));
    }
    let said =
        format!("{version}, with {} off: a crash may lose what was accepted", off.join(" and "));
    off.iter().fold(finding(about, Verdict::Bad, said), |found, name| {
        found.hint(format!("ALTER SYSTEM RESET {name}; SELECT pg_reload_conf(); or, where a role or a database has it: ALTER … RESET {name}"))
    })
}

/// How long a transaction may keep its snapshot before somebody is told.
const SNAPSHOT_OLD: u64 = 300;

/// Whether dead rows can go: claims cost the same meanwhile, but the tables grow.
fn vacuum(server: &Server) -> Finding {
    let old: Vec<&Holder> =
        server.holders.iter().filter(|holder| holder.seconds >= SNAPSHOT_OLD).collect();
    let Some(oldest) = old.first() else {
        return finding("vacuum", Verdict::Good, "no transaction holds it back");
    };
    let said = format!(
        "{} has held a snapshot for {} min: what is dead since then takes up room",
        oldest.who,
        oldest.seconds / 60
    );
    old.iter().fold(finding("vacuum", Verdict::Warning, said), |found, holder| {
        found.hint(format!("if {} need not go on: {}", holder.who, holder.release))
    })
}

/// Whether all nodes fit.
async fn connections(config: &Config, server: &Server) -> Finding {
    let about = "connections";
    let Server { sessions, sessions_max, .. } = *server;
    let each = config.store_connections as u32;
    let nodes = match storage::open_existing(config).await {
        Ok(store) => store.workers().await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let nodes = nodes.iter().filter(|node| !node.remote && node.lease_until >= now()).count();
    let said = format!(
        "{sessions} of {sessions_max} in use; {nodes} nodes of this store need {each} each"
    );
    // A node that is replaced by another is there twice for a while.
    if sessions_max.saturating_sub(sessions) >= each * 2 {
        return finding(about, Verdict::Good, said);
    }
    finding(about, Verdict::Warning, format!("{said}: another node may find none"))
        .hint("raise max_connections, lower store_connections, or go through PgBouncer: docs/guides/postgresql.md")
}

/// Times come from the store's clock where several machines share it.
async fn store_clock(config: &Config) -> Option<Finding> {
    let store = storage::open_existing(config).await.ok()?;
    let sent = Instant::now();
    let told = store.clock().await.ok()??;
    let off =
        told.duration_since(Timestamp::now()).as_secs_f64() + sent.elapsed().as_secs_f64() / 2.0;
    let said = format!("this host is {:.3} s off the database's clock", -off);
    Some(match off.abs() < CLOCKS_APART {
        true => finding("store clock", Verdict::Good, said),
        false => finding("store clock", Verdict::Warning, said)
            .hint("Matins goes by the database's; set both by NTP, or logs disagree"),
    })
}

/// Seconds.
const CLOCKS_APART: f64 = 2.0;

/// The oldest Redis that has what is asked of it. Valkey began with 7.2.
const REDIS_MIN: (u32, u32) = (6, 2);

/// Redis, if there is one. It is asked itself: PostgreSQL need not answer for that.
async fn redis(config: &Config) -> Vec<Finding> {
    let about = "redis";
    let Some(place) = &config.redis else { return Vec::new() };
    let looked = async {
        let mut glance = Glance::new(&place.url.0, &place.prefix)?;
        let mut facts = glance.info("server").await?;
        for section in ["persistence", "memory"] {
            facts.extend(glance.info(section).await?);
        }
        Ok::<_, matins_core::store::StoreError>(facts)
    };
    let facts = match looked.await {
        Ok(facts) => facts,
        Err(error) => {
            let said = format!("{error}: tasks run, through PostgreSQL alone");
            return vec![
                finding(about, Verdict::Warning, said)
                    .hint("does it run, and does redis: name it? redis-cli -u ADDRESS ping"),
            ];
        }
    };
    vec![release(about, &facts), persistence(&facts), eviction(&facts)]
}

fn release(about: &'static str, facts: &BTreeMap<String, String>) -> Finding {
    let fact = |name: &str| facts.get(name).map_or("", String::as_str);
    let (name, version) = match fact("valkey_version") {
        "" => ("Redis", fact("redis_version")),
        version => ("Valkey", version),
    };
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let said = format!("{name} {version}");
    match found < REDIS_MIN {
        true => finding(about, Verdict::Bad, format!("{said}: 6.2 or newer is needed"))
            .hint("use a newer one, or run without: remove redis: from the configuration"),
        false => finding(about, Verdict::Good, said),
    }
}

fn persistence(facts: &BTreeMap<String, String>) -> Finding {
    let about = "redis file";
    if facts.get("aof_enabled").is_some_and(|on| on == "1") {
        return finding(about, Verdict::Good, "appendonly is on");
    }
    let said = "appendonly is off: it is empty after a restart, and while PostgreSQL is away \
                nothing can be accepted";
    finding(about, Verdict::Warning, said)
        .hint("CONFIG SET appendonly yes, and the same in redis.conf")
}

fn eviction(facts: &BTreeMap<String, String>) -> Finding {
    let about = "redis memory";
    let policy = facts.get("maxmemory_policy").map_or("unknown", String::as_str);
    if policy == "noeviction" {
        return finding(about, Verdict::Good, "nothing is evicted");
    }
    let said = format!("maxmemory_policy is {policy}: what is listed may vanish when it is full");
    finding(about, Verdict::Warning, said)
        .hint("CONFIG SET maxmemory-policy noeviction, and the same in redis.conf")
}

/// What somebody changed in the database by hand.
async fn schema(config: &Config) -> Option<Finding> {
    let about = "schema";
    let differences = match storage::differences(config).await {
        Ok(differences) => differences?,
        Err(failure) => {
            let said = failure.message.unwrap_or_default();
            let said = format!("cannot be compared with what this program makes: {said}");
            let hint = "the role needs CREATE on the database for the comparison";
            return Some(finding(about, Verdict::Warning, said).hint(hint));
        }
    };
    if differences.is_empty() {
        return Some(finding(about, Verdict::Good, "as this program made it"));
    }
    let is_bad = differences.iter().any(|found| found.problem != Problem::Unknown);
    let verdict = if is_bad { Verdict::Bad } else { Verdict::Warning };
    let said: Vec<String> = differences.iter().map(Difference::to_string).collect();
    let mut found = finding(about, verdict, said.join("; "));
    if differences.iter().any(Difference::can_be_repaired) {
        found = found.hint("matins migrate --repair");
    }
    if differences.iter().any(is_of_data) {
        found = found.hint("what holds data is not repaired: restore a backup");
    }
    if !is_bad {
        found = found.hint("what is unknown does no harm; is it meant to be there?");
    }
    Some(found)
}

fn is_of_data(found: &Difference) -> bool {
    found.problem != Problem::Unknown && !found.can_be_repaired()
}
