-- Purpose: a worker that has not been seen since is dead: what it claimed lapses.
-- Index: worker_pkey.
UPDATE matins.worker SET retired = true WHERE name = $1 AND seen_at = $2 AND NOT retired
RETURNING 1
