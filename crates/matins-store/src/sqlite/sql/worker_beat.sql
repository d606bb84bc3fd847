-- Purpose: a worker's entry renewed, while it has one.
-- Index: primary key.
UPDATE worker
SET node_id = ?2, started_at = ?3, seen_at = ?4, lease_until = ?5, draining = ?6, remote = ?7,
    pools = ?8, types = ?9
WHERE name = ?1 AND retired = 0
