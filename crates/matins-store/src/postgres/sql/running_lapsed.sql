-- Purpose: claims that no lease covers, in the order they were made; visits what runs.
-- Index: scan of running, which is small.
SELECT f.*, coalesce(w.draining, false)
FROM (
    SELECT r.id, r.worker, r.fence FROM matins.running AS r
    LEFT JOIN matins.worker AS w ON w.name = r.worker
    WHERE (coalesce(w.retired, false)
           OR coalesce(r.lease_until, w.lease_until, '-infinity') < $1)
      AND NOT matins.runs_in_the_dark(r.fence)
    ORDER BY r.fence LIMIT $2
) AS r
JOIN matins.task_full AS f ON f.id = r.id
LEFT JOIN matins.worker AS w ON w.name = r.worker
ORDER BY r.fence
