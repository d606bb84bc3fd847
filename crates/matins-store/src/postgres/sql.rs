//! The statements, one file each, with the types of their parameters.

use std::time::Duration;

use tokio_postgres::types::Type;

macro_rules! statements {
    ($($name:ident = $file:literal [$($ty:ident),* $(,)?],)+) => {
        /// Names of the statements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Sql { $($name),+ }

        impl Sql {
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$name),+];

            pub(super) const fn text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("sql/", $file, ".sql"))),+ }
            }

            pub(super) const fn types(self) -> &'static [Type] {
                match self { $(Self::$name => &[$(Type::$ty),*]),+ }
            }
        }
    };
}

statements! {
    MetaGet = "meta_get" [],
    Ping = "ping" [],
    TaskById = "task_by_id" [UUID],
    TasksByIds = "tasks_by_ids" [UUID_ARRAY],
    TaskWalk = "task_walk" [
        INT8, INT8, INT4_ARRAY, TEXT, TEXT, TEXT, TEXT, INT4_ARRAY, INT8, INT4_ARRAY,
    ],
    TaskWalkRunning = "task_walk_running" [
        INT8, INT8, INT4_ARRAY, TEXT, TEXT, TEXT, TEXT, INT4_ARRAY, INT8,
    ],
    TaskWalkFailed = "task_walk_failed" [
        INT8, INT8, INT4_ARRAY, TEXT, TEXT, TEXT, TEXT, INT4_ARRAY, INT8,
    ],
    DeadFloor = "dead_floor" [INT8, INT8],
    TaskHits = "task_hits" [TEXT, TEXT, UUID, UUID],
    TaskBounds = "task_bounds" [],
    TaskLast = "task_last" [],
    AttemptList = "attempt_list" [UUID],
    LaneLoad = "lane_load" [],
    EnqueueTold = "enqueue_told" [
        UUID_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TIMESTAMPTZ_ARRAY,
        TIMESTAMPTZ_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TIMESTAMPTZ,
    ],
    EnqueueEach = "enqueue_each" [
        UUID_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TIMESTAMPTZ_ARRAY,
        TIMESTAMPTZ_ARRAY, TEXT_ARRAY, INT2_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY,
        INT8_ARRAY, TEXT_ARRAY, UUID_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY, BOOL_ARRAY, TEXT_ARRAY,
        TIMESTAMPTZ,
    ],
    ReplayEnqueues = "replay_enqueues" [
        UUID_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT2_ARRAY, TIMESTAMPTZ_ARRAY,
        TIMESTAMPTZ_ARRAY, TEXT_ARRAY, INT2_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY,
        INT8_ARRAY, TEXT_ARRAY, UUID_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY, BOOL_ARRAY, TEXT_ARRAY,
        UUID_ARRAY, TIMESTAMPTZ_ARRAY,
    ],
    ReplayTurn = "replay_turn" [],
    ReplayClaim = "replay_claim" [
        UUID, TIMESTAMPTZ, UUID, INT4, INT8, INT8, TEXT, UUID, INT8, INT4, INT4, INT4,
    ],
    ReplayFire = "replay_fire" [UUID, TIMESTAMPTZ, JSONB],
    ReplayCancel = "replay_cancel" [
        UUID, TIMESTAMPTZ, UUID, BOOL, INT4, INT4, INT4, INT4, TEXT, TEXT,
    ],
    ReplayPause = "replay_pause" [UUID, TIMESTAMPTZ, TEXT, TEXT, TEXT],
    AttachRuns = "attach_runs" [INT8_ARRAY, TIMESTAMPTZ],
    MemberTurn = "member_turn" [UUID, TEXT, INT8, INT8, TEXT, BOOL, INT8],
    MemberLeave = "member_leave" [UUID],
    MemberForget = "member_forget" [TEXT],
    HoldClaim = "hold_claim" [UUID, TEXT_ARRAY],
    WaitingTasks = "waiting_tasks" [TEXT_ARRAY, UUID_ARRAY],
    MirroredTasks = "mirrored_tasks" [UUID_ARRAY],
    MirrorWindow = "mirror_window" [INT8, INT4],
    MarksAhead = "marks_ahead" [INT8, INT4],
    MarksNamed = "marks_named" [TEXT_ARRAY],
    MarksRead = "marks_read" [UUID_ARRAY],
    FireTaken = "fire_taken" [JSONB, TIMESTAMPTZ, INT8],
    SchedulePutTaken = "schedule_put_taken" [JSONB, INT8],
    ScheduleRemoveTaken = "schedule_remove_taken" [TEXT, TEXT, TEXT, TIMESTAMPTZ, INT8],
    ClaimTaken = "claim_taken" [
        INT8, INT4_ARRAY, TEXT, TEXT, TEXT_ARRAY, UUID_ARRAY, INT4, INT8, TIMESTAMPTZ, TIMESTAMPTZ,
    ],
    CancelTaken = "cancel_taken" [UUID_ARRAY, TEXT, TEXT, TIMESTAMPTZ, INT8, INT4_ARRAY],
    RetryTaken = "retry_taken" [UUID_ARRAY, TEXT, TEXT, TEXT, TIMESTAMPTZ, INT8, INT4_ARRAY],
    JournalPrune = "journal_prune" [TIMESTAMPTZ, INT4],
    Claim = "claim" [
        TEXT, TEXT, TEXT_ARRAY, INT4, INT8, TIMESTAMPTZ, TIMESTAMPTZ, INT4_ARRAY, INT8_ARRAY,
        TIMESTAMPTZ,
    ],
    ClaimNamed = "claim_named" [
        TEXT, TEXT, TEXT_ARRAY, UUID_ARRAY, INT4, INT8, TIMESTAMPTZ, TIMESTAMPTZ,
    ],
    ClaimedBefore = "claimed_before" [TEXT, INT8],
    CompleteAll = "complete_all" [
        UUID_ARRAY, INT8_ARRAY, INT8_ARRAY, INT4_ARRAY, INT4_ARRAY, BYTEA_ARRAY, INT8_ARRAY,
        INT8_ARRAY, TIMESTAMPTZ_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT4_ARRAY, INT4_ARRAY, INT4_ARRAY,
        INT4_ARRAY,
    ],
    Settle = "settle" [
        UUID_ARRAY, INT8_ARRAY, INT8_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
        TEXT_ARRAY, INT4_ARRAY, INT4_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, TIMESTAMPTZ_ARRAY,
        INT2_ARRAY, TIMESTAMPTZ_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT4_ARRAY,
        INT4_ARRAY, INT4_ARRAY, INT4_ARRAY,
    ],
    EndRuns = "end_runs" [
        UUID_ARRAY, INT8_ARRAY, INT8_ARRAY, INT4_ARRAY, INT4_ARRAY, BYTEA_ARRAY, INT8_ARRAY,
        INT8_ARRAY, TIMESTAMPTZ_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT4_ARRAY, INT4_ARRAY, INT4_ARRAY,
        INT4_ARRAY,
        UUID_ARRAY, INT8_ARRAY, INT8_ARRAY, INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY,
        TEXT_ARRAY, INT4_ARRAY, INT4_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, TIMESTAMPTZ_ARRAY,
        INT2_ARRAY, TIMESTAMPTZ_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT4_ARRAY,
        INT4_ARRAY, INT4_ARRAY, INT4_ARRAY,
    ],
    WorkerPut = "worker_put" [
        TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, BOOL, BOOL, TEXT, TEXT,
    ],
    WorkerBeat = "worker_beat" [TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, BOOL, BOOL, TEXT, TEXT],
    WorkerGuard = "worker_guard" [TEXT],
    Look = "look" [
        TEXT_ARRAY, TEXT_ARRAY, INT4_ARRAY, INT8_ARRAY, TIMESTAMPTZ, BOOL, BOOL, TIMESTAMPTZ,
        TIMESTAMPTZ,
    ],
    WorkerDied = "worker_died" [TEXT, TIMESTAMPTZ],
    WorkerRetire = "worker_retire" [TEXT],
    WorkerList = "worker_list" [],
    Extend = "extend" [UUID_ARRAY, INT8_ARRAY, INT8_ARRAY, TIMESTAMPTZ],
    RunningAsked = "running_asked" [TEXT],
    RunningLapsed = "running_lapsed" [TIMESTAMPTZ, INT8],
    RunningByWorker = "running_by_worker" [TEXT],
    Expire = "expire" [TIMESTAMPTZ, INT4],
    Cancel = "cancel" [UUID_ARRAY, TEXT, TEXT, TIMESTAMPTZ],
    Retry = "retry" [UUID_ARRAY, TEXT, TEXT, TEXT, TIMESTAMPTZ],
    Dismiss = "dismiss" [UUID_ARRAY, TEXT, TEXT, TEXT, TIMESTAMPTZ],
    SchedulePut = "schedule_put" [JSONB],
    ScheduleRemove = "schedule_remove" [TEXT, TEXT, TEXT, TIMESTAMPTZ],
    ScheduleGet = "schedule_get" [TEXT],
    SchedulePage = "schedule_page" [TEXT, INT8],
    ScheduleDue = "schedule_due" [TIMESTAMPTZ, INT8],
    ScheduleNext = "schedule_next" [TIMESTAMPTZ],
    Live = "live" [UUID],
    Fire = "fire" [JSONB, TIMESTAMPTZ],
    OccurrencePage = "occurrence_page" [INT8, INT8],
    OccurrenceOf = "occurrence_of" [INT8, INT8, TEXT],
    OccurrenceFired = "occurrence_fired" [UUID, TIMESTAMPTZ, TIMESTAMPTZ],
    SettingLoad = "setting_load" [],
    SettingGet = "setting_get" [TEXT, TEXT],
    SettingChange = "setting_change" [JSONB, TEXT, TEXT, TEXT, TEXT, TIMESTAMPTZ],
    KeyGet = "key_get" [TEXT, TEXT],
    ForgetKey = "forget_key" [TEXT, TEXT, TEXT, TEXT, TIMESTAMPTZ],
    AuditPage = "audit_page" [INT8, INT8],
    AuditInsert = "audit_insert" [TIMESTAMPTZ, TEXT, TEXT, TEXT, TEXT],
    OperationPut = "operation_put" [UUID, BOOL, TIMESTAMPTZ, TIMESTAMPTZ, TEXT, TEXT],
    OperationGet = "operation_get" [UUID],
    OperationList = "operation_list" [],
    TokenList = "token_list" [],
    TokenPut = "token_put" [TEXT, TEXT],
    TokenDelete = "token_delete" [TEXT],
    NoteGet = "note_get" [TEXT],
    NotePut = "note_put" [TEXT, TEXT],
    AlertRaise = "alert_raise" [TIMESTAMPTZ_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BOOL_ARRAY, TEXT_ARRAY, BOOL],
    AlertPage = "alert_page" [INT8, INT8],
    AlertPrune = "alert_prune" [TIMESTAMPTZ, INT8],
    TurnTake = "turn_take" [TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT8],
    AlertFile = "alert_file" [TEXT, INT8_ARRAY, TEXT],
    Notify = "notify" [TEXT],
    IsBehind = "is_behind" [TIMESTAMPTZ],
    FollowClock = "follow_clock" [TIMESTAMPTZ],
    CatchUp = "catch_up" [TIMESTAMPTZ, INT4],
    TallyFold = "tally_fold" [INT4],
    Figures = "figures" [TIMESTAMPTZ, TIMESTAMPTZ],
    SlotRivals = "slot_rivals" [],
    PlaceOfTask = "place_of_task" [TEXT, TEXT, INT4, INT8],
    LaneAhead = "lane_ahead" [TEXT, INT8, INT8, INT8],
    Surroundings = "surroundings" [TEXT],
    DeadNewest = "dead_newest" [
        TIMESTAMPTZ, INT8, TEXT, INT4_ARRAY, TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT8,
    ],
    DeadOldest = "dead_oldest" [
        TIMESTAMPTZ, INT8, TEXT, INT4_ARRAY, TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ, INT8,
    ],
    DeadGroups = "dead_groups" [TEXT, INT4_ARRAY, TEXT, TEXT, TIMESTAMPTZ, TIMESTAMPTZ],
    HintPlaces = "hint_places" [UUID_ARRAY],
    HintWindow = "hint_window" [INT8, INT8],
    Pools = "pools" [],
    HintDead = "hint_dead" [INT8],
    Prune = "prune" [
        TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ, TIMESTAMPTZ,
        INT4,
    ],
}

/// What is done again soon anyway must not hold others up for long.
const UPKEEP_LIMIT: Duration = Duration::from_secs(5);

/// Whoever looks must not hold up those who work.
const VIEW_LIMIT: Duration = Duration::from_secs(10);

/// A step of pruning may drop a day as a whole.
const PRUNE_LIMIT: Duration = Duration::from_secs(10);

impl Sql {
    /// How long the database works on a statement of upkeep, or of somebody who looks, before it
    /// gives up: less than the store's patience, so that it says so itself. What work waits for has
    /// that patience alone.
    pub(super) const fn limit(self) -> Option<Duration> {
        match self {
            Self::Prune => Some(PRUNE_LIMIT),
            Self::Expire
            | Self::JournalPrune
            | Self::RunningLapsed
            | Self::CatchUp
            | Self::TallyFold
            | Self::Figures
            | Self::SlotRivals
            | Self::DeadOldest => Some(UPKEEP_LIMIT),
            Self::TaskWalk
            | Self::TaskWalkRunning
            | Self::TaskWalkFailed
            | Self::DeadFloor
            | Self::TaskHits
            | Self::DeadNewest
            | Self::DeadGroups
            | Self::AlertPage
            | Self::AuditPage
            | Self::OccurrencePage
            | Self::SchedulePage
            | Self::LaneAhead
            | Self::Surroundings => Some(VIEW_LIMIT),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use matins_testbed::Postgres;
    use tokio_postgres::NoTls;

    use super::*;
    use crate::postgres::{Options, PostgresStore};

    #[test]
    fn every_file_is_a_statement_that_says_what_it_is_for() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres/sql");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), Sql::ALL.len());
        for sql in Sql::ALL {
            let lines: Vec<&str> = sql.text().lines().collect();
            assert!(lines[0].starts_with("-- Purpose: "), "{sql:?}");
            let said = lines.iter().take(3).any(|line| line.starts_with("-- Index: "));
            assert!(said, "{sql:?}");
        }
    }

    #[tokio::test]
    async fn every_statement_is_valid_with_the_types_of_its_parameters() {
        let url = Postgres::shared().database("template1");
        PostgresStore::open(&url, Options::default()).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        for sql in Sql::ALL {
            let prepared = client.prepare_typed(sql.text(), sql.types()).await;
            let prepared = prepared.unwrap_or_else(|error| panic!("{sql:?}: {error}"));
            assert_eq!(prepared.params(), sql.types(), "{sql:?}");
        }
        connection.abort();
    }
}
