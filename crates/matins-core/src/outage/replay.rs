//! What an entry of the journal does to PostgreSQL. Applying one twice is applying it once.

/// A row as replay sees it, locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowView {
    pub state: RowState,
    pub attempt: u32,
    /// The fence of the claim it runs under.
    pub fence: Option<u64>,
    /// It runs under a claim of the journal that was not handed over.
    pub journal: bool,
    /// An attempt with the entry's fence is stored already.
    pub knows_fence: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    Pending,
    Running,
    Ended,
}

impl RowView {
    /// A spool is replayed without the entries of others that lie between its own. A later claim
    /// of the journal tells that the earlier one had ended in Redis, and not with success.
    fn gives_way(self) -> bool {
        match self.state {
            RowState::Pending => true,
            RowState::Running => self.journal,
            RowState::Ended => false,
        }
    }
}

/// What becomes of a claim made in the dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimReplay {
    /// Applied before, from a spool or from the stream.
    Known,
    /// The row is missing: the claim carries the whole task.
    Insert,
    Apply,
    /// Somebody else had the task: this run is stored as an attempt of that outcome, its
    /// settlement changes nothing, and an alert is raised.
    Superseded,
}

pub fn claim(row: Option<RowView>, attempt: u32) -> ClaimReplay {
    match row {
        None => ClaimReplay::Insert,
        Some(row) if row.knows_fence => ClaimReplay::Known,
        Some(row) if row.gives_way() && row.attempt < attempt => ClaimReplay::Apply,
        Some(_) => ClaimReplay::Superseded,
    }
}

/// Whether an end, a release or a loss changes the row: by fence, never by attempt.
pub fn settlement_counts(row: Option<RowView>, fence: u64) -> bool {
    row.is_some_and(|row| row.state == RowState::Running && row.fence == Some(fence))
}

/// How far a stream has been applied, as PostgreSQL has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recorded<I, P> {
    pub identity: I,
    pub last: P,
}

/// After which entry to read on, and up to which one to trim. A position says nothing about the
/// stream of another Redis, or of another life of it.
pub fn read_from<I: PartialEq, P>(recorded: Option<Recorded<I, P>>, seen: I) -> Option<P> {
    recorded.filter(|recorded| recorded.identity == seen).map(|recorded| recorded.last)
}
