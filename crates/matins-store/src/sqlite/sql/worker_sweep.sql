-- Purpose: entries retired long ago, without claims; visits what runs.
-- Index: scan of worker, which is small, in maintenance.
DELETE FROM worker
WHERE retired = 1 AND seen_at <= ?1 AND name NOT IN (SELECT worker FROM running)
