-- Purpose: occurrences of a schedule before a number, the last first.
-- Index: occurrence_schedule, range.
SELECT schedule_uid, schedule, label, label_to, count, kind, time, outcome, reason, task_id,
       fired_at, number
FROM matins.occurrence WHERE schedule = $3 AND number < $1 ORDER BY number DESC LIMIT $2
