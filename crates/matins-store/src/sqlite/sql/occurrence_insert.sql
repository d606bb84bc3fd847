-- Purpose: what became of an occurrence.
-- Index: writes its indexes.
INSERT INTO occurrence (
    schedule_uid, schedule, label, label_to, count, kind, time, outcome, reason, task_id, fired_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
