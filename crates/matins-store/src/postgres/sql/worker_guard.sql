-- Purpose: holds a lock on a worker's name as long as this session lives, and says so in its entry.
-- Index: worker_pkey.
SELECT pg_try_advisory_lock(1835103846, hashtext($1)),
       EXISTS (SELECT 1 FROM matins.guard_worker($1))
