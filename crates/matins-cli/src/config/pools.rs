//! `task_pools:`, `allow_commands:`, `http:`, `pings:` and `canary:`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use matins_core::ping::Expectation;
use matins_core::request::check_name;
use matins_core::task::Name;
use matins_runtime::executors::{AddressPolicy, Cidr};
use matins_runtime::rules::{AD_HOC, AllowCommands, DEFAULT_POOL, DEFAULT_POOL_WORKERS, PoolRule};

use super::cursor::{Cursor, Table};
use super::problem::Problem;
use super::reference;
use super::yaml::Value;

pub(crate) fn pools(at: &Cursor<'_>) -> Option<BTreeMap<Name, PoolRule>> {
    let mut pools = BTreeMap::new();
    let mut owners: HashMap<String, (String, Cursor<'_>)> = HashMap::new();
    for (key, entry) in at.named()? {
        if let Err(error) = check_name("pool", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
            continue;
        }
        let Some(table) = entry.table(&reference::POOL) else { continue };
        let max_workers = workers(&table, &key.text);
        let mut types: BTreeSet<Name> = BTreeSet::new();
        let listed = table.get("task_types", |c| c.list(|i| i.filled().map(|t| (t, i.clone()))));
        for (kind, item) in listed.unwrap_or_default() {
            if let Err(error) = check_name("type", &kind) {
                item.reader.note(item.problem(error.message));
                continue;
            }
            if let Some((owner, first)) = owners.get(&kind) {
                let message = if owner == &key.text {
                    format!("the type {kind} is listed twice")
                } else {
                    format!("the type {kind} already belongs to pool {owner}")
                };
                let problem = item.problem(message);
                item.reader.note(problem.and_at(&first.node.place, "first listed"));
            } else {
                types.insert(kind.as_str().into());
                owners.insert(kind, (key.text.clone(), item));
            }
        }
        if let Some(max_workers) = max_workers {
            pools.insert(key.text.as_str().into(), PoolRule { max_workers, types });
        }
    }
    Some(pools)
}

fn workers(table: &Table<'_>, pool: &str) -> Option<u32> {
    let is_default = pool == DEFAULT_POOL;
    if !is_default && !table.has("task_types") {
        table.missing("task_types", "the types whose tasks go to this pool, or []");
    }
    if is_default && !table.has("max_workers") {
        return Some(DEFAULT_POOL_WORKERS);
    }
    table.need("max_workers", "how many of its tasks run at once", |c| c.count(1..=10_000))
}

pub(crate) fn allow_commands(at: &Cursor<'_>) -> Option<AllowCommands> {
    if let Value::List(_) = at.node.value {
        let types = at.list(|item| item.word(&AD_HOC.map(|kind| (kind, kind.to_owned()))))?;
        return Some(AllowCommands::Types(types.into_iter().collect()));
    }
    match &at.node.value {
        Value::Scalar(scalar) if scalar.text == "none" => Some(AllowCommands::None),
        Value::Scalar(scalar) if scalar.text == "any" => Some(AllowCommands::Any),
        _ => at.expected("none, any, or a list of command, http_call and db_query"),
    }
}

/// Jobs of others, by name.
pub(crate) fn pings(at: &Cursor<'_>) -> Option<BTreeMap<Name, Expectation>> {
    let mut pings = BTreeMap::new();
    for (key, entry) in at.named()? {
        if let Err(error) = check_name("name", &key.text) {
            let problem = Problem::new(key.place.clone(), entry.path.clone(), error.message);
            at.reader.note(problem);
        } else if let Some(expected) = ping(&entry) {
            pings.insert(key.text.as_str().into(), expected);
        }
    }
    Some(pings)
}

fn ping(at: &Cursor<'_>) -> Option<Expectation> {
    const YEAR: Duration = Duration::from_secs(366 * 86_400);
    let table = at.table(&reference::PING)?;
    let shortest = Duration::from_secs(1);
    let period =
        table.need("period", "how often it reports", |c| c.duration_in(shortest..=YEAR))?;
    // As healthchecks of crontabs go: late by a quarter of its period is late.
    let grace = table.get("grace", |c| c.duration_in(Duration::ZERO..=YEAR));
    Some(Expectation { period, grace: grace.unwrap_or(period / 4) })
}

/// How often; nothing is `off`.
pub(crate) fn canary(at: &Cursor<'_>) -> Option<Duration> {
    match &at.node.value {
        Value::Scalar(scalar) if scalar.text == "off" => Some(Duration::ZERO),
        _ => at.duration_in(Duration::from_secs(5)..=Duration::from_secs(86_400)),
    }
}

pub(crate) fn http(at: &Cursor<'_>) -> Option<AddressPolicy> {
    let table = at.table(&reference::HTTP)?;
    Some(AddressPolicy {
        allow: table.get("allow", |c| c.list(cidr)).unwrap_or_default(),
        redirects: table.get("redirects", |c| c.count(0..=20)).unwrap_or(0),
    })
}

fn cidr(at: &Cursor<'_>) -> Option<Cidr> {
    let text = at.text()?;
    let (addr, prefix) = match text.split_once('/') {
        Some((addr, prefix)) => (addr, Some(prefix)),
        None => (text.as_str(), None),
    };
    let parsed = addr.parse::<IpAddr>().ok().and_then(|addr| {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) => digits.parse::<u8>().ok().filter(|prefix| *prefix <= most)?,
            None => most,
        };
        Some(Cidr { addr, prefix })
    });
    match parsed {
        Some(cidr) => Some(cidr),
        None => at.expected("an address range such as 10.0.0.0/8"),
    }
}
