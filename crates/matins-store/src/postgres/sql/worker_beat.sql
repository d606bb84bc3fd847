-- Purpose: a worker's entry renewed, while it has one. It keeps the time it started at.
-- Index: worker_pkey.
UPDATE matins.worker
SET node_id = $2, seen_at = $3, lease_until = $4, draining = $5, remote = $6, pools = $7,
    types = $8
WHERE name = $1 AND NOT retired
RETURNING 1
