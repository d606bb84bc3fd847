-- Purpose: a schedule's occurrences, the last recorded first.
-- Index: occurrence_schedule, range.
SELECT number, schedule_uid, schedule, label, label_to, count, kind, time, outcome, reason,
       task_id, fired_at
FROM occurrence WHERE schedule = ?3 AND number < ?1 ORDER BY number DESC LIMIT ?2
