-- Purpose: a worker's entry, new or replaced.
-- Index: primary key.
INSERT OR REPLACE INTO worker (
    name, node_id, started_at, seen_at, lease_until, draining, remote, pools, types, retired
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)
