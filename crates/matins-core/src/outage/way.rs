//! How a connected node may claim a row: through Redis, without it, or not yet.

use super::Generation;

/// The Redis that a node sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sight {
    /// No answer.
    Away,
    /// Not the one stored for the current generation: restarted, failed over, exchanged.
    Other,
    /// The one that the current generation belongs to.
    Same,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// Take in Redis, then claim with [`Word::Taken`].
    Through,
    /// Claim with [`Word::Alone`]: no copy of it can be claimed in the dark any more.
    Without,
    /// A new generation first, with the Redis that is seen now, or with none.
    Bump,
    /// For an acknowledgement, one's own or that of others, or for their leases to end.
    Wait,
}

/// What a row's claim may go by. `mirrored`: the generation under which it was mirrored last.
pub fn way(
    acknowledged: bool,
    settled: bool,
    sight: Sight,
    mirrored: Generation,
    current: Generation,
) -> Way {
    match sight {
        _ if !acknowledged || !settled => Way::Wait,
        Sight::Same => Way::Through,
        Sight::Away | Sight::Other if mirrored < current => Way::Without,
        Sight::Away | Sight::Other => Way::Bump,
    }
}

/// What a claim in PostgreSQL says of itself; compared in the statement that claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// Taken in Redis, under this generation and attempt, both read before the take.
    Taken { generation: Generation, attempt: u32 },
    /// Without Redis.
    Alone,
}

/// Whether a claim stands, by what the statement sees.
pub fn word_stands(
    word: Word,
    current: Generation,
    settled: bool,
    mirrored: Generation,
    row_attempt: u32,
) -> bool {
    match word {
        Word::Taken { generation, attempt } => generation == current && attempt == row_attempt,
        Word::Alone => settled && mirrored < current,
    }
}
