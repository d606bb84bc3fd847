-- Purpose: entries whose leases ended long ago, without claims; visits what runs.
-- Index: scan of worker, which is small, in maintenance.
DELETE FROM worker
WHERE name IN (
    SELECT w.name FROM worker AS w JOIN name AS n ON n.id = w.name
    WHERE w.lease_until <= ?1 AND w.name NOT IN (SELECT worker FROM running)
    ORDER BY w.lease_until, n.text LIMIT ?2
)
