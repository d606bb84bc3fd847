//! What may be promised about an entry of the journal, and its form.

use std::fmt::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::lifecycle::Settlement;
use crate::schedule::FirePlan;
use crate::store::Act;
use crate::task::{Claim, Durability, Name, NewTask, Task, WorkerId};

/// What a Redis says about what it keeps. What it does not say counts as no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Persistence {
    pub aof: bool,
    /// `maxmemory-policy noeviction`.
    pub noeviction: bool,
}

/// `None`: refused with `redis_not_durable`.
pub fn durability(keeps: Persistence, accept_volatile: bool) -> Option<Durability> {
    match (keeps.aof && keeps.noeviction, accept_volatile) {
        (true, _) => Some(Durability::Redis),
        (false, true) => Some(Durability::Volatile),
        (false, false) => None,
    }
}

/// Something that was promised while the database was away. Its id makes that applying it twice
/// is applying it once, whether it comes from a spool or from Redis, and whenever.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub id: Uuid,
    pub at: Timestamp,
    pub change: Change,
}

/// Externally tagged: a payload is kept byte for byte only where nothing is buffered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Enqueue(Box<NewTask>),
    Claim(Box<DarkClaim>),
    /// A run under a claim of the journal has ended.
    Settle(Box<Settlement>),
    /// A schedule was decided about.
    Fire(Box<FirePlan>),
    /// A person does not want a task any more.
    Cancel(Box<DarkCancel>),
    /// A person has stopped a pool.
    Pause(Box<DarkPause>),
}

/// A task that was cancelled without the database: while it waited, so that nobody starts it any
/// more, or while it ran, so that its end is up to whoever runs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DarkCancel {
    /// As it was then: the database may not know it yet.
    pub task: Task,
    pub act: Act,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DarkPause {
    pub pool: Name,
    pub act: Act,
}

/// A claim that was made without the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DarkClaim {
    pub claim: Claim,
    /// As it runs: the database may not know it yet.
    pub task: Task,
    pub worker: WorkerId,
    /// Who holds it, and in which of its times in the dark.
    pub member: Uuid,
    pub episode: u64,
}

/// What seals the entries of a journal; without a key, nothing does.
#[derive(Clone, Default)]
pub struct Seal(Option<Box<[u8]>>);

/// Why a text is no entry.
#[derive(Debug, thiserror::Error)]
pub enum Unsealed {
    #[error("it is not sealed with this node's journal_key")]
    Forged,
    #[error("it is not an entry of the journal: {0}")]
    Garbled(String),
}

/// Of an entry that nothing seals.
const NO_SEAL: &str = "-";

impl Seal {
    pub fn new(key: Option<&str>) -> Self {
        Self(key.map(|key| key.as_bytes().into()))
    }

    fn code(key: &[u8], text: &str) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
        code.update(text.as_bytes());
        code
    }

    /// One text. A payload in it may have line ends of its own.
    pub fn close(&self, entry: &Entry) -> serde_json::Result<String> {
        Ok(self.close_text(&serde_json::to_string(entry)?))
    }

    pub fn open(&self, line: &str) -> Result<Entry, Unsealed> {
        let text = self.open_text(line)?;
        serde_json::from_str(text).map_err(|error| Unsealed::Garbled(error.to_string()))
    }

    /// Any text.
    pub fn close_text(&self, text: &str) -> String {
        match &self.0 {
            None => format!("{NO_SEAL} {text}"),
            Some(key) => {
                let code = Self::code(key, text).finalize().into_bytes();
                let mut line = String::with_capacity(2 * code.len() + 1 + text.len());
                for byte in code {
                    let _ = write!(line, "{byte:02x}");
                }
                line + " " + text
            }
        }
    }

    pub fn open_text<'t>(&self, line: &'t str) -> Result<&'t str, Unsealed> {
        let no_seal = || Unsealed::Garbled("it has no seal in front".to_owned());
        let (code, text) = line.split_once(' ').ok_or_else(no_seal)?;
        if let Some(key) = &self.0 {
            let code = hex(code).ok_or(Unsealed::Forged)?;
            Self::code(key, text).verify_slice(&code).map_err(|_| Unsealed::Forged)?;
        }
        Ok(text)
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Seal(key)" } else { "Seal(none)" })
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Json;
    use crate::duration::Timeout;
    use crate::retry::Backoff;
    use crate::task::TaskId;

    fn entry(payload: &str) -> Entry {
        let at = Timestamp::from_microsecond(1_790_000_000_123_457).unwrap();
        let task = NewTask {
            expires_at: Some(at),
            execution_key: Some("a\tb".into()),
            tags: vec!["x".to_owned(), "\u{1f310}".to_owned()],
            max_retries: Some(3),
            backoff: Some(Backoff { factor: 1.1, jitter: 0.3, ..Backoff::default() }),
            timeout: Some(Timeout::None),
            ..NewTask::new(TaskId(Uuid::new_v4()), "t", Json::parse(payload).unwrap(), at)
        };
        Entry { id: Uuid::new_v4(), at, change: Change::Enqueue(Box::new(task)) }
    }

    #[test]
    fn what_is_sealed_comes_back_byte_for_byte() {
        let payloads =
            [r#"{"b": 1E400, "a" : 123456789012345678901234567890}"#, r#""\ud800 \u0000\n""#];
        for payload in payloads {
            for key in [None, Some("k"), Some("")] {
                let (seal, entry) = (Seal::new(key), entry(payload));
                let line = seal.close(&entry).unwrap();
                assert_eq!(seal.open(&line).unwrap(), entry);
            }
        }
    }

    #[test]
    fn what_was_changed_or_sealed_by_others_is_refused() {
        let seal = Seal::new(Some("one"));
        let line = seal.close(&entry("1")).unwrap();
        let changed = line.replacen("\"t\"", "\"u\"", 1);
        assert!(changed != line);
        let (code, text) = line.split_once(' ').unwrap();
        let unsealed = format!("{NO_SEAL} {text}");
        for forged in [changed, unsealed, format!("{}0 {text}", &code[1..]), format!("é {text}")] {
            assert!(matches!(seal.open(&forged), Err(Unsealed::Forged)), "{forged}");
        }
        assert!(matches!(Seal::new(Some("two")).open(&line), Err(Unsealed::Forged)));
        for garbled in ["", "-", "- {}", "- {\"id\":"] {
            assert!(matches!(Seal::default().open(garbled), Err(Unsealed::Garbled(_))));
        }
    }
}
