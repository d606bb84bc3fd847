-- Purpose: a worker's entry, new or replaced.
-- Index: worker_pkey.
INSERT INTO matins.worker
    (name, node_id, started_at, seen_at, lease_until, draining, remote, pools, types, retired)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, false)
ON CONFLICT (name) DO UPDATE SET node_id = excluded.node_id, started_at = excluded.started_at,
    seen_at = excluded.seen_at, lease_until = excluded.lease_until,
    draining = excluded.draining, remote = excluded.remote, pools = excluded.pools,
    types = excluded.types, retired = false, guarded = false
