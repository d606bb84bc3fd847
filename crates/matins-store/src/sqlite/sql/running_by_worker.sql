-- Purpose: running tasks of a pool by worker; visits what runs.
-- Index: scan of running, which is small.
SELECT n.text, count(*) FROM running AS r
JOIN lane AS l ON l.id = r.lane JOIN name AS p ON p.id = l.pool JOIN name AS n ON n.id = r.worker
WHERE p.text = ?1 GROUP BY r.worker
