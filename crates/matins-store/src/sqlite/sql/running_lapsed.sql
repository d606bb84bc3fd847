-- Purpose: claims that no lease covers, in the order they were made; visits what runs.
-- Index: scan of running, which is small.
SELECT r.seq, coalesce(w.draining, 0)
FROM running AS r LEFT JOIN worker AS w ON w.name = r.worker
WHERE coalesce(w.retired, 0) = 1
   OR coalesce(r.lease_until, w.lease_until, -9223372036854775808) < ?1
ORDER BY r.fence LIMIT ?2
