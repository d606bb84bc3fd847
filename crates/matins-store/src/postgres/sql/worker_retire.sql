-- Purpose: a worker's entry is taken away; kept while it has claims.
-- Index: worker_pkey.
UPDATE matins.worker SET retired = true WHERE name = $1
