-- Purpose: an entry whose lease ended long ago, without claims; visits what runs.
-- Index: scan of worker, which is small, in maintenance.
SELECT 1 FROM worker
WHERE lease_until <= ?1 AND name NOT IN (SELECT worker FROM running) LIMIT ?2
