-- Purpose: a schedule's fired occurrences in a range of nominal times.
-- Index: occurrence_fired, range; task_id.
SELECT o.number, o.schedule_uid, o.schedule, o.label, o.label_to, o.count, o.kind, o.time,
       o.outcome, o.reason, o.task_id, o.fired_at, t.state, r.seq IS NOT NULL
FROM occurrence AS o
LEFT JOIN task AS t ON t.id = o.task_id
LEFT JOIN running AS r ON r.seq = t.seq
WHERE o.schedule_uid = ?1 AND o.outcome = 'fired' AND o.time >= ?2 AND o.time < ?3
ORDER BY o.time, o.number
