//! The statements, one file each.

macro_rules! statements {
    ($($name:ident = $file:literal,)+) => {
        /// Names of the statements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Sql { $($name),+ }

        impl Sql {
            pub(super) const ALL: &'static [Self] = &[$(Self::$name),+];

            pub(super) const fn text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("sql/", $file, ".sql"))),+ }
            }
        }
    };
}

statements! {
    NameFind = "name_find",
    NameAdd = "name_add",
    NameText = "name_text",
    LaneLoad = "lane_load",
    LaneAdd = "lane_add",
    LaneSave = "lane_save",
    LaneGet = "lane_get",
    FenceLoad = "fence_load",
    FenceSave = "fence_save",
    DataVersion = "data_version",
    TaskInsert = "task_insert",
    TaskById = "task_by_id",
    TaskBySeq = "task_by_seq",
    TaskPending = "task_pending",
    TaskSeq = "task_seq",
    TaskFacts = "task_facts",
    TaskSettle = "task_settle",
    TaskAgain = "task_again",
    TaskCancel = "task_cancel",
    TaskDeduplicate = "task_deduplicate",
    TaskRelease = "task_release",
    TaskSetDue = "task_set_due",
    TaskReplace = "task_replace",
    TaskReplay = "task_replay",
    TaskDismiss = "task_dismiss",
    TaskDelete = "task_delete",
    AttemptInsert = "attempt_insert",
    AttemptMove = "attempt_move",
    AttemptList = "attempt_list",
    AttemptLast = "attempt_last",
    AttemptDelete = "attempt_delete",
    ReadyInsert = "ready_insert",
    ReadyDelete = "ready_delete",
    ReadyDeleteTo = "ready_delete_to",
    ReadyHead = "ready_head",
    ReadyAfter = "ready_after",
    ScheduledInsert = "scheduled_insert",
    ScheduledDelete = "scheduled_delete",
    ScheduledDue = "scheduled_due",
    ScheduledDeleteTo = "scheduled_delete_to",
    Early = "early",
    ScheduledNext = "scheduled_next",
    ExpiringInsert = "expiring_insert",
    ExpiringDelete = "expiring_delete",
    ExpiringDue = "expiring_due",
    RunningInsert = "running_insert",
    RunningGet = "running_get",
    RunningDelete = "running_delete",
    RunningExtend = "running_extend",
    RunningCancel = "running_cancel",
    RunningAsked = "running_asked",
    RunningLapsed = "running_lapsed",
    TurnGet = "turn_get",
    TurnPut = "turn_put",
    SlotKeys = "slot_keys",
    SlotCount = "slot_count",
    SlotTurned = "slot_turned",
    SlotRivals = "slot_rivals",
    TurnPrune = "turn_prune",
    SlotInsert = "slot_insert",
    SlotDelete = "slot_delete",
    SlotFirst = "slot_first",
    SlotLast = "slot_last",
    SlotActive = "slot_active",
    SlotAge = "slot_age",
    SlotAged = "slot_aged",
    KeyTake = "key_take",
    KeyGet = "key_get",
    KeyFree = "key_free",
    KeyOld = "key_old",
    KeyKeep = "key_keep",
    KeyOver = "key_over",
    KeyRange = "key_range",
    DeadKeyRange = "dead_key_range",
    SweptLoad = "swept_load",
    SweptSave = "swept_save",
    AuditOld = "audit_old",
    KeyPrune = "key_prune",
    LiveInsert = "live_insert",
    LiveDelete = "live_delete",
    LiveFirst = "live_first",
    LiveList = "live_list",
    LiveCount = "live_count",
    FailuresAdd = "failures_add",
    FailuresClear = "failures_clear",
    FailuresGet = "failures_get",
    DeadInsert = "dead_insert",
    DeadDismiss = "dead_dismiss",
    DeadDelete = "dead_delete",
    WorkerPut = "worker_put",
    WorkerBeat = "worker_beat",
    WorkerRetire = "worker_retire",
    WorkerOld = "worker_old",
    WorkerPrune = "worker_prune",
    WorkerList = "worker_list",
    WorkerLease = "worker_lease",
    SettingLoad = "setting_load",
    SettingPut = "setting_put",
    SettingDelete = "setting_delete",
    RateLoad = "rate_load",
    RatePut = "rate_put",
    AuditInsert = "audit_insert",
    ScheduleInsert = "schedule_insert",
    ScheduleAdvance = "schedule_advance",
    ScheduleUpdate = "schedule_update",
    ScheduleDelete = "schedule_delete",
    ScheduleUid = "schedule_uid",
    ScheduleGet = "schedule_get",
    SchedulePage = "schedule_page",
    ScheduleFirst = "schedule_first",
    ScheduleDue = "schedule_due",
    ScheduleNext = "schedule_next",
    ScheduleOverdue = "schedule_overdue",
    SchedulePruned = "schedule_pruned",
    OccurrenceInsert = "occurrence_insert",
    OccurrenceKnown = "occurrence_known",
    OccurrencePage = "occurrence_page",
    OccurrenceOf = "occurrence_of",
    OccurrenceFired = "occurrence_fired",
    OccurrenceOld = "occurrence_old",
    OccurrenceDelete = "occurrence_delete",
    TaskWalk = "task_walk",
    TaskWalkSchedule = "task_walk_schedule",
    TaskWalkFailed = "task_walk_failed",
    TaskWalkRunning = "task_walk_running",
    TaskByIdRange = "task_by_id_range",
    OpenSeqs = "open_seqs",
    EndedSeqs = "ended_seqs",
    DeadNewest = "dead_newest",
    DeadOldest = "dead_oldest",
    DeadNewestAlike = "dead_newest_alike",
    DeadOldestAlike = "dead_oldest_alike",
    DeadGroupRows = "dead_group_rows",
    DeadGroupRowsTagged = "dead_group_rows_tagged",
    DeadError = "dead_error",
    LaneCounts = "lane_counts",
    LaneSpread = "lane_spread",
    ReadyLanes = "ready_lanes",
    RunningRepeat = "running_repeat",
    TaskRunAt = "task_run_at",
    DueUnpromoted = "due_unpromoted",
    LaneAhead = "lane_ahead",
    LanesOfPool = "lanes_of_pool",
    LanesOfType = "lanes_of_type",
    QuarantineRunning = "quarantine_running",
    RunningOfTask = "running_of_task",
    RunningByWorker = "running_by_worker",
    RateGet = "rate_get",
    AuditPage = "audit_page",
    AuditPrune = "audit_prune",
    OperationPut = "operation_put",
    OperationGet = "operation_get",
    OperationList = "operation_list",
    OperationOld = "operation_old",
    OperationDelete = "operation_delete",
    TokenList = "token_list",
    TokenPut = "token_put",
    TokenDelete = "token_delete",
    NoteGet = "note_get",
    NotePut = "note_put",
    AlertInsert = "alert_insert",
    AlertUnread = "alert_unread",
    AlertRead = "alert_read",
    AlertPage = "alert_page",
    AlertOld = "alert_old",
    AlertPrune = "alert_prune",
    DeskGet = "desk_get",
    DeskTurn = "desk_turn",
    DeskFile = "desk_file",
    PruneEnded = "prune_ended",
    PruneDismissed = "prune_dismissed",
    PruneFacts = "prune_facts",
    MetaGet = "meta_get",
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::migrate::ALL;

    /// Statements of the hot path: accepting, handing out, ending.
    const HOT: &[Sql] = &[
        Sql::TaskInsert,
        Sql::TaskById,
        Sql::TaskBySeq,
        Sql::TaskPending,
        Sql::TaskFacts,
        Sql::TaskSettle,
        Sql::TaskAgain,
        Sql::AttemptInsert,
        Sql::ReadyInsert,
        Sql::ReadyDelete,
        Sql::ReadyDeleteTo,
        Sql::ReadyHead,
        Sql::ReadyAfter,
        Sql::ScheduledInsert,
        Sql::ScheduledDelete,
        Sql::ScheduledDue,
        Sql::ScheduledDeleteTo,
        Sql::ScheduledNext,
        Sql::ExpiringInsert,
        Sql::ExpiringDelete,
        Sql::ExpiringDue,
        Sql::RunningInsert,
        Sql::RunningGet,
        Sql::RunningDelete,
        Sql::RunningExtend,
        Sql::TurnGet,
        Sql::TurnPut,
        Sql::SlotInsert,
        Sql::SlotDelete,
        Sql::SlotFirst,
        Sql::SlotLast,
        Sql::SlotActive,
        Sql::SlotCount,
        Sql::KeyTake,
        Sql::KeyGet,
        Sql::KeyFree,
        Sql::LiveInsert,
        Sql::LiveDelete,
        Sql::LiveFirst,
        Sql::DeadInsert,
        Sql::WorkerBeat,
        Sql::WorkerLease,
        Sql::LaneSave,
        Sql::FenceSave,
        Sql::RatePut,
        Sql::ScheduleDue,
        Sql::ScheduleNext,
        Sql::OccurrenceInsert,
        Sql::OccurrenceKnown,
        Sql::ScheduleAdvance,
        Sql::TaskWalk,
        Sql::TaskWalkSchedule,
        Sql::TaskWalkFailed,
        Sql::DeadNewest,
        Sql::DeadOldest,
        Sql::DeadNewestAlike,
        Sql::DeadGroupRows,
        Sql::PruneEnded,
        Sql::PruneDismissed,
        Sql::KeyPrune,
        Sql::OccurrenceOld,
        Sql::LaneAhead,
        Sql::AlertInsert,
        Sql::AlertUnread,
        Sql::AlertPage,
        Sql::AlertOld,
        Sql::DeskGet,
    ];

    fn schema() -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        for migration in ALL {
            conn.execute_batch(migration.sql).unwrap();
        }
        conn
    }

    fn plan(conn: &Connection, sql: Sql) -> Vec<String> {
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {}", sql.text())).unwrap();
        let mut rows = statement.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get(3).unwrap());
        }
        steps
    }

    #[test]
    fn every_statement_is_valid_and_says_what_it_is_for() {
        let conn = schema();
        for sql in Sql::ALL {
            conn.prepare(sql.text()).unwrap_or_else(|error| panic!("{sql:?}: {error}"));
            let mut lines = sql.text().lines();
            assert!(lines.next().unwrap().starts_with("-- Purpose: "), "{sql:?}");
            assert!(lines.next().unwrap().starts_with("-- Index: "), "{sql:?}");
        }
    }

    #[test]
    fn every_file_is_a_statement() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sqlite/sql");
        let files = std::fs::read_dir(folder).unwrap();
        let count =
            files.filter(|f| f.as_ref().unwrap().path().extension().is_some_and(|e| e == "sql"));
        assert_eq!(count.count(), Sql::ALL.len());
    }

    /// What a hot statement costs does not grow with the table. `MATINS_BLESS=1` rewrites the
    /// snapshot; look at what changed.
    #[test]
    fn hot_statements_search_and_never_scan_or_sort() {
        let conn = schema();
        let mut seen = String::new();
        for sql in HOT {
            writeln!(seen, "{sql:?}").unwrap();
            for step in plan(&conn, *sql) {
                let walks = matches!(sql, Sql::DeadGroupRows | Sql::LaneAhead | Sql::AlertUnread);
                assert!(walks || !step.starts_with("SCAN"), "{sql:?}: {step}");
                assert!(!step.contains("TEMP B-TREE"), "{sql:?}: {step}");
                writeln!(seen, "    {step}").unwrap();
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sqlite/sql/plans.txt");
        if std::env::var_os("MATINS_BLESS").is_some() {
            std::fs::write(path, &seen).unwrap();
        }
        assert_eq!(seen, std::fs::read_to_string(path).unwrap_or_default());
    }
}
