//! What a node's own file says: types, their policies, pools and limits. Nothing in the store
//! can widen it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use matins_core::duration::Timeout;
pub use matins_core::executor::{AD_HOC, AD_HOC_COMMAND, AD_HOC_HTTP, AD_HOC_SQL};
use matins_core::limits::Limits;
use matins_core::ping::Expectation;
use matins_core::rate::Rate;
use matins_core::request::TypeDefaults;
use matins_core::retry::{Backoff, RetryPolicy};
use matins_core::store::{Retention, TypeLimit};
use matins_core::task::{Name, Task};

use crate::executors::sql::{Connection, SqlConfig};
use crate::executors::{AddressPolicy, CommandConfig, HttpConfig};

/// The pool of types that no pool names.
pub const DEFAULT_POOL: &str = "default";
pub const DEFAULT_POOL_WORKERS: u32 = 10;

/// Policy keys of a type; what is absent falls back to `defaults`, then to the built-in values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Policy {
    pub timeout: Option<Timeout>,
    pub grace: Option<Duration>,
    pub max_retries: Option<u32>,
    pub backoff: Option<Backoff>,
    pub max_losses: Option<u32>,
    pub max_interruptions: Option<u32>,
}

/// Between asking a run to end and ending it.
pub const GRACE: Duration = Duration::from_secs(10);

impl Policy {
    fn or(self, other: Self) -> Self {
        Self {
            timeout: self.timeout.or(other.timeout),
            grace: self.grace.or(other.grace),
            max_retries: self.max_retries.or(other.max_retries),
            backoff: self.backoff.or(other.backoff),
            max_losses: self.max_losses.or(other.max_losses),
            max_interruptions: self.max_interruptions.or(other.max_interruptions),
        }
    }
}

/// A policy with nothing left open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resolved {
    pub timeout: Timeout,
    pub grace: Duration,
    pub retry: RetryPolicy,
}

/// How a type's work is done.
#[derive(Debug, Clone)]
pub enum TypeExecutor {
    Command(CommandConfig),
    Http(HttpConfig),
    Sql(SqlConfig),
    /// A Rust handler, given to the engine under the same name.
    Handler,
}

#[derive(Debug, Clone)]
pub struct TypeRule {
    pub executor: TypeExecutor,
    pub policy: Policy,
    pub rate_limit: Option<Rate>,
    pub concurrency: Option<u32>,
    /// JSON pointer into the payload.
    pub concurrency_key: Option<String>,
    pub per_key: Option<u32>,
    /// What a handler that ignores its end means.
    pub on_stuck: OnStuck,
    /// Run on although the lease could be judged (SPEC §4).
    pub finish_on_lease_loss: bool,
}

impl TypeRule {
    pub fn new(executor: TypeExecutor) -> Self {
        Self {
            executor,
            policy: Policy::default(),
            rate_limit: None,
            concurrency: None,
            concurrency_key: None,
            per_key: None,
            on_stuck: OnStuck::default(),
            finish_on_lease_loss: false,
        }
    }
}

/// What to do about a blocking handler that ignores timeout and cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStuck {
    /// It stays running and its slot stays taken.
    #[default]
    Hold,
    /// The attempt is settled and the thread left behind; refused for keyed tasks.
    Abandon,
    /// The process ends itself.
    Abort,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRule {
    pub max_workers: u32,
    pub types: BTreeSet<Name>,
}

/// Which ad-hoc types this node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowCommands {
    None,
    Types(BTreeSet<String>),
    Any,
}

impl AllowCommands {
    pub fn allows(&self, kind: &str) -> bool {
        match self {
            Self::None => false,
            Self::Types(types) => types.contains(kind),
            Self::Any => true,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Rules {
    pub defaults: Policy,
    pub types: BTreeMap<Name, TypeRule>,
    pub pools: BTreeMap<Name, PoolRule>,
    pub limits: Limits,
    pub retention: Retention,
    pub allow_commands: AllowCommands,
    /// Databases of SQL types and of `db_query`.
    pub connections: BTreeMap<Name, Connection>,
    /// Where URLs of payloads may lead.
    pub http: AddressPolicy,
    /// Jobs of others that are expected to report.
    pub pings: BTreeMap<Name, Expectation>,
    /// Folder that relative paths of commands start from.
    pub base_dir: PathBuf,
    /// Who is told what.
    pub alerts: Arc<matins_core::alert::policy::Policy>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            defaults: Policy::default(),
            types: BTreeMap::new(),
            pools: BTreeMap::new(),
            limits: Limits::default(),
            retention: Retention::default(),
            allow_commands: AllowCommands::Any,
            connections: BTreeMap::new(),
            http: AddressPolicy::default(),
            pings: BTreeMap::new(),
            base_dir: PathBuf::from("."),
            alerts: Arc::default(),
        }
    }
}

impl Rules {
    /// The pool of a type that does not say otherwise.
    pub fn pool_of(&self, kind: &str) -> Name {
        self.pools
            .iter()
            .find(|(_, pool)| pool.types.contains(kind))
            .map_or_else(|| DEFAULT_POOL.into(), |(name, _)| name.clone())
    }

    /// Every pool with its slots; `default` is always among them.
    pub fn pool_sizes(&self) -> BTreeMap<Name, u32> {
        let mut sizes: BTreeMap<Name, u32> =
            self.pools.iter().map(|(name, pool)| (name.clone(), pool.max_workers)).collect();
        sizes.entry(DEFAULT_POOL.into()).or_insert(DEFAULT_POOL_WORKERS);
        sizes
    }

    pub fn type_defaults(&self, kind: &str) -> TypeDefaults {
        TypeDefaults {
            pool: self.pool_of(kind),
            concurrency_key: self.types.get(kind).and_then(|rule| rule.concurrency_key.clone()),
        }
    }

    /// The policy of a type, without the task's own overrides.
    pub fn policy_of(&self, kind: &str) -> Resolved {
        let policy = self.types.get(kind).map_or(self.defaults, |r| r.policy.or(self.defaults));
        let retry = RetryPolicy::default();
        Resolved {
            timeout: policy.timeout.unwrap_or_default(),
            grace: policy.grace.unwrap_or(GRACE),
            retry: RetryPolicy {
                max_retries: policy.max_retries.unwrap_or(retry.max_retries),
                backoff: policy.backoff.unwrap_or(retry.backoff),
                max_losses: policy.max_losses.unwrap_or(retry.max_losses),
                max_interruptions: policy.max_interruptions.unwrap_or(retry.max_interruptions),
            },
        }
    }

    /// The policy that governs a task: its own values over its type's.
    pub fn policy_for(&self, task: &Task) -> Resolved {
        let mut policy = self.policy_of(&task.kind);
        policy.timeout = task.timeout.unwrap_or(policy.timeout);
        policy.retry.max_retries = task.max_retries.unwrap_or(policy.retry.max_retries);
        policy.retry.backoff = task.backoff.unwrap_or(policy.retry.backoff);
        policy
    }

    /// The pool of each type that the file puts in one.
    pub fn routes(&self) -> BTreeMap<Name, Name> {
        let pools = self.pools.iter();
        pools
            .flat_map(|(pool, rule)| rule.types.iter().map(|kind| (kind.clone(), pool.clone())))
            .collect()
    }

    /// The limits that hold over all nodes, for the store.
    pub fn type_limits(&self) -> Vec<TypeLimit> {
        self.types
            .iter()
            .map(|(kind, rule)| TypeLimit {
                kind: kind.clone(),
                rate_limit: rule.rate_limit,
                concurrency: rule.concurrency,
                concurrency_key: rule.concurrency_key.clone(),
                per_key: rule.per_key.unwrap_or(1),
            })
            .collect()
    }
}

/// Rules that a reload replaces as a whole.
pub type SharedRules = Arc<std::sync::RwLock<Arc<Rules>>>;
