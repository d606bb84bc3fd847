-- Purpose: entries that are not retired.
-- Index: scan of worker, which is small.
SELECT name, node_id, started_at, seen_at, lease_until, draining, remote, pools, types
FROM matins.worker WHERE NOT retired ORDER BY name
