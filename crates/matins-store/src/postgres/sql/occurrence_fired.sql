-- Purpose: fired occurrences of a schedule by their time, with the states of their tasks.
-- Index: occurrence_fired, range; task_id, history_id.
SELECT o.schedule_uid, o.schedule, o.label, o.label_to, o.count, o.kind, o.time, o.outcome,
       o.reason, o.task_id, o.fired_at, f.state, f.fence IS NOT NULL
FROM matins.occurrence AS o
LEFT JOIN LATERAL (SELECT state, fence FROM matins.task_full AS t WHERE t.id = o.task_id) AS f
    ON true
WHERE o.outcome = 'fired' AND o.schedule_uid = $1 AND o.time >= $2 AND o.time < $3
ORDER BY o.time, o.number
