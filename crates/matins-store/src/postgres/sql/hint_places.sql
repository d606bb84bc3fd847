-- Purpose: where some tasks wait, of those that are pending.
-- Index: task_id; scheduled_pkey, running_pkey.
SELECT t.id, t.attempt, t.seq, t.priority, l.pool, l.type, t.run_at,
       t.held OR t.concurrency_key IS NOT NULL,
       EXISTS (SELECT 1 FROM matins.scheduled AS s WHERE s.run_at = t.run_at AND s.seq = t.seq)
FROM unnest($1) AS u (id), LATERAL (SELECT * FROM matins.task WHERE id = u.id LIMIT 1) AS t
JOIN matins.lane AS l ON l.id = t.lane
WHERE t.state = 0 AND (SELECT r.id FROM matins.running AS r WHERE r.id = t.id LIMIT 1) IS NULL
