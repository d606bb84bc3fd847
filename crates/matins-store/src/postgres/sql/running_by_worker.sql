-- Purpose: how many tasks of a pool each worker runs.
-- Index: scan of running, which is small.
SELECT r.worker, count(*) FROM matins.running AS r JOIN matins.lane AS l ON l.id = r.lane
WHERE l.pool = $1 GROUP BY r.worker
