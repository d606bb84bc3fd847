-- Purpose: occurrences, the last recorded first.
-- Index: primary key, range.
SELECT number, schedule_uid, schedule, label, label_to, count, kind, time, outcome, reason,
       task_id, fired_at
FROM occurrence WHERE number < ?1 ORDER BY number DESC LIMIT ?2
