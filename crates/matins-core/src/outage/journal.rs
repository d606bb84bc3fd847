//! What may be promised about an entry of the journal.

/// What a Redis says about what it keeps. What it does not say counts as no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Persistence {
    pub aof: bool,
    /// `maxmemory-policy noeviction`.
    pub noeviction: bool,
}

/// How safe a task is that was accepted in an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Kept by Redis on disk, and by the node in its spool.
    Redis,
    /// The operator accepts that Redis forgets (`accept_volatile`).
    Volatile,
}

/// `None`: refused with `redis_not_durable`.
pub fn durability(keeps: Persistence, accept_volatile: bool) -> Option<Durability> {
    match (keeps.aof && keeps.noeviction, accept_volatile) {
        (true, _) => Some(Durability::Redis),
        (false, true) => Some(Durability::Volatile),
        (false, false) => None,
    }
}
