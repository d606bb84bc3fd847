-- Purpose: a worker's entry renewed, while it has one. It keeps the time it started at (?3).
-- Index: primary key.
UPDATE worker
SET node_id = ?2, seen_at = ?4, lease_until = ?5, draining = ?6, remote = ?7,
    pools = ?8, types = ?9
WHERE name = ?1 AND retired = 0
