//! Who may do what: tokens, roles, and the one rule about where to listen.
//!
//! Secrets are kept as SHA-256 only, compared in constant time against every known token, and
//! never shown after they are made. An empty secret matches nothing. There is no way to switch
//! this off: a caller without a token can be had inside the process only.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use matins_core::store::{Store, Token};
use matins_runtime::rules::AD_HOC;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;

use crate::problem::{Code, Problem, Result};
use crate::wire::Secrets;

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at everything.
    Viewer,
    /// Also act on tasks, schedules and pools.
    Operator,
    /// Also tokens, the ledger, and what ad-hoc types run.
    Admin,
    /// Claim and settle tasks of its types.
    Worker,
    /// Enqueue tasks of its types.
    Enqueue,
}

impl Role {
    pub const ALL: [Self; 5] =
        [Self::Viewer, Self::Operator, Self::Admin, Self::Worker, Self::Enqueue];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Worker => "worker",
            Self::Enqueue => "enqueue",
        }
    }

    /// Whether the role's tokens may be limited to types.
    pub const fn takes_types(self) -> bool {
        matches!(self, Self::Worker | Self::Enqueue)
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Role {
    type Err = AuthError;

    fn from_str(text: &str) -> std::result::Result<Self, AuthError> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| AuthError::UnknownRole(text.to_owned()))
    }
}

/// What an operation asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody; says status words only.
    Open,
    /// Anybody or a viewer, as the settings say.
    Metrics,
    Viewer,
    Operator,
    Admin,
    /// Claims and settles.
    Worker,
    /// Enqueues.
    Enqueue,
}

impl Access {
    pub const fn permits(self, role: Role) -> bool {
        match self {
            Self::Open => true,
            Self::Metrics | Self::Viewer => {
                matches!(role, Role::Viewer | Role::Operator | Role::Admin)
            }
            Self::Operator => matches!(role, Role::Operator | Role::Admin),
            Self::Admin => matches!(role, Role::Admin),
            Self::Worker => matches!(role, Role::Worker | Role::Admin),
            Self::Enqueue => matches!(role, Role::Enqueue | Role::Operator | Role::Admin),
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Metrics | Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Worker => "worker",
            Self::Enqueue => "enqueue",
        }
    }
}

/// Who asks. As a request extension it marks a request made inside the process, which the
/// network cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// For the audit log: the token's name, or `local:<user>`.
    pub who: String,
    pub role: Role,
    /// The types that a worker or enqueue-only token is limited to; `None`: any.
    pub types: Option<BTreeSet<String>>,
}

impl Caller {
    /// Somebody who works on the store itself, and so may do everything.
    pub fn local(user: &str) -> Self {
        Self { who: format!("local:{user}"), role: Role::Admin, types: None }
    }

    /// Whoever only looks has no use for the secrets of those who work.
    pub const fn secrets(&self) -> Secrets {
        match self.role {
            Role::Viewer => Secrets::Masked,
            Role::Operator | Role::Admin | Role::Worker | Role::Enqueue => Secrets::Shown,
        }
    }

    /// Whether a payload of that type may be chosen by this caller.
    pub fn check_enqueue(&self, kind: &str) -> Result<()> {
        let listed = self.types.as_ref().is_some_and(|types| types.contains(kind));
        let allowed = match self.role {
            Role::Enqueue => listed || (self.types.is_none() && !AD_HOC.contains(&kind)),
            _ => true,
        };
        if allowed {
            return Ok(());
        }
        let detail = format!("token {} may not enqueue tasks of type {kind}", self.who);
        Err(Problem::new(Code::Forbidden, detail))
    }

    /// What an ad-hoc type runs is in its payload: changing it is running something else.
    pub fn check_edit(&self, kind: &str) -> Result<()> {
        if self.role == Role::Admin || !AD_HOC.contains(&kind) {
            return Ok(());
        }
        let detail = format!("editing a payload of type {kind} needs the role admin");
        Err(Problem::new(Code::Forbidden, detail))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("{0:?} is not a role: expected viewer, operator, admin, worker or enqueue")]
    UnknownRole(String),
    #[error("token {0}: the secret is empty")]
    EmptySecret(String),
    #[error("token {0} is given twice")]
    Twice(String),
    #[error("token {name}: only worker and enqueue tokens can be limited to types, not {role}")]
    TypesNotAllowed { name: String, role: Role },
    #[error(
        "listening on {0}, which is not loopback, needs a token: make one with `matins token create`"
    )]
    NoToken(SocketAddr),
    #[error(
        "token {name}: the secret is too weak to listen on {listen}, which is not loopback: \
         expected at least 128 random bits, such as 32 hexadecimal digits"
    )]
    WeakSecret { name: String, listen: SocketAddr },
}

/// A token that the configuration gives.
#[derive(Clone)]
pub struct GivenToken {
    pub name: String,
    pub role: Role,
    /// Empty: any.
    pub types: Vec<String>,
    pub secret: String,
}

/// A known token: what it grants, and how it is recognised.
#[derive(Clone)]
struct Grant {
    caller: Caller,
    hash: [u8; 32],
    weak: bool,
}

/// Stored tokens as last read.
#[derive(Default)]
struct Stored {
    grants: Arc<Vec<Grant>>,
    read_at: Option<Instant>,
}

/// Everything that recognises a caller.
pub struct Auth {
    fixed: Vec<Grant>,
    store: Arc<dyn Store>,
    stored: Mutex<Stored>,
}

/// How long a revoked token may still be taken.
const STORED_AGE_MAX: Duration = Duration::from_secs(5);
/// How soon an unknown token is looked for in the store again.
const MISS_AGE_MAX: Duration = Duration::from_millis(500);

impl Auth {
    pub fn new(
        store: Arc<dyn Store>,
        given: Vec<GivenToken>,
    ) -> std::result::Result<Self, AuthError> {
        let mut names = HashSet::new();
        let mut fixed = Vec::with_capacity(given.len());
        for token in given {
            if token.secret.trim().is_empty() {
                return Err(AuthError::EmptySecret(token.name));
            }
            if !names.insert(token.name.clone()) {
                return Err(AuthError::Twice(token.name));
            }
            if !token.types.is_empty() && !token.role.takes_types() {
                return Err(AuthError::TypesNotAllowed { name: token.name, role: token.role });
            }
            fixed.push(Grant {
                hash: Sha256::digest(token.secret.as_bytes()).into(),
                weak: is_weak(&token.secret),
                caller: Caller { who: token.name, role: token.role, types: limited(token.types) },
            });
        }
        Ok(Self { fixed, store, stored: Mutex::default() })
    }

    /// Refuses to listen where others can reach it, unless they need a strong secret.
    pub async fn check_bind(&self, listen: SocketAddr) -> std::result::Result<(), AuthError> {
        if listen.ip().is_loopback() {
            return Ok(());
        }
        if let Some(weak) = self.fixed.iter().find(|grant| grant.weak) {
            return Err(AuthError::WeakSecret { name: weak.caller.who.clone(), listen });
        }
        if self.fixed.is_empty() && self.stored(STORED_AGE_MAX).await.is_empty() {
            return Err(AuthError::NoToken(listen));
        }
        Ok(())
    }

    /// Whose token it is.
    pub async fn identify(&self, secret: &str) -> Option<Caller> {
        if secret.is_empty() {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        let fixed = find(&self.fixed, &hash);
        let known = match fixed {
            Some(caller) => Some(caller),
            None => find(&self.stored(STORED_AGE_MAX).await, &hash),
        };
        match known {
            Some(caller) => Some(caller),
            None => find(&self.stored(MISS_AGE_MAX).await, &hash),
        }
    }

    /// Forgets what was read, after this process has changed a token.
    pub(crate) async fn tokens_changed(&self) {
        self.stored.lock().await.read_at = None;
    }

    /// While the store is away, what was read last counts on.
    async fn stored(&self, age_max: Duration) -> Arc<Vec<Grant>> {
        let mut stored = self.stored.lock().await;
        if stored.read_at.is_none_or(|at| at.elapsed() >= age_max) {
            match self.store.tokens().await {
                Ok(tokens) => {
                    stored.grants = Arc::new(tokens.iter().filter_map(grant).collect());
                    stored.read_at = Some(Instant::now());
                }
                Err(error) => tracing::warn!(%error, "could not read the stored tokens"),
            }
        }
        stored.grants.clone()
    }
}

fn limited(types: Vec<String>) -> Option<BTreeSet<String>> {
    (!types.is_empty()).then(|| types.into_iter().collect())
}

/// Compares with every token, so that the time tells nothing about which one is near.
fn find(grants: &[Grant], hash: &[u8; 32]) -> Option<Caller> {
    let mut found = None;
    for grant in grants {
        if bool::from(grant.hash.ct_eq(hash)) {
            found = Some(grant.caller.clone());
        }
    }
    found
}

fn grant(token: &Token) -> Option<Grant> {
    let (Ok(role), Some(hash)) = (token.role.parse(), unhex(&token.hash)) else {
        tracing::warn!(name = token.name, "a stored token cannot be read and opens nothing");
        return None;
    };
    let caller = Caller { who: token.name.clone(), role, types: limited(token.types.clone()) };
    Some(Grant { caller, hash, weak: false })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u32> = text.chars().map_while(|c| c.to_digit(16)).collect();
    if text.len() != 64 || digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (pair[0] * 16 + pair[1]) as u8;
    }
    Some(bytes)
}

/// A fresh secret of 256 random bits.
pub fn new_secret() -> String {
    let bytes: [u8; 32] = rand::random();
    format!("mat_{}", URL_SAFE_NO_PAD.encode(bytes))
}

/// What a store keeps of a secret.
pub fn hash_hex(secret: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(secret.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Fewer than 128 bits, judged by length and alphabet; repetition does not count.
fn is_weak(secret: &str) -> bool {
    let distinct: HashSet<char> = secret.chars().collect();
    let all = |test: fn(char) -> bool| secret.chars().all(test);
    let bits_per_char = if all(|c| c.is_ascii_digit()) {
        3.3
    } else if all(|c| c.is_ascii_hexdigit()) {
        4.0
    } else {
        5.9
    };
    distinct.len() < 8 || (secret.chars().count() as f64) * bits_per_char < 128.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_secrets_are_told_from_strong_ones() {
        for weak in [
            "",
            "x",
            "password",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "0123456789abcdef0123456789abcde",
            "12345678901234567890123456789012345678",
        ] {
            assert!(is_weak(weak), "{weak}");
        }
        for strong in ["0123456789abcdef0123456789abcdef", "kJ8s-2mQpZ_7vXyB1nTwRa"] {
            assert!(!is_weak(strong), "{strong}");
        }
        for _ in 0..100 {
            assert!(!is_weak(&new_secret()));
        }
    }

    #[test]
    fn stored_hashes_are_read_back() {
        let secret = new_secret();
        let hash: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        assert_eq!(unhex(&hash_hex(&secret)), Some(hash));
        for text in ["", "zz", &"g".repeat(64), &"0".repeat(63), &"é".repeat(32)] {
            assert_eq!(unhex(text), None);
        }
    }

    #[test]
    fn ad_hoc_types_must_be_listed() {
        let caller = |role, types: &[&str]| Caller {
            who: "t".into(),
            role,
            types: limited(types.iter().map(|t| (*t).to_owned()).collect()),
        };
        assert!(caller(Role::Enqueue, &[]).check_enqueue("sync").is_ok());
        assert!(caller(Role::Enqueue, &[]).check_enqueue("command").is_err());
        assert!(caller(Role::Enqueue, &["command"]).check_enqueue("command").is_ok());
        assert!(caller(Role::Enqueue, &["command"]).check_enqueue("sync").is_err());
        assert!(caller(Role::Operator, &[]).check_enqueue("command").is_ok());
        assert!(caller(Role::Operator, &[]).check_edit("command").is_err());
        assert!(caller(Role::Operator, &[]).check_edit("sync").is_ok());
        assert!(caller(Role::Admin, &[]).check_edit("db_query").is_ok());
    }
}
