-- Purpose: occurrences before a number, the last first.
-- Index: occurrence_pkey, range.
SELECT schedule_uid, schedule, label, label_to, count, kind, time, outcome, reason, task_id,
       fired_at, number
FROM matins.occurrence WHERE number < $1 ORDER BY number DESC LIMIT $2
