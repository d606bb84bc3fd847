-- Purpose: runs of a worker that somebody wants to end; visits what runs.
-- Index: scan of running, which is small.
SELECT t.id FROM running AS r JOIN task AS t ON t.seq = r.seq
WHERE r.worker = ?1 AND r.cancel_requested_at IS NOT NULL ORDER BY r.fence
