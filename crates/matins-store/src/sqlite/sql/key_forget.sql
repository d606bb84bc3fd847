-- Purpose: frees a completed key.
-- Index: primary key.
DELETE FROM exec_key WHERE type = ?1 AND key = ?2 AND at IS NOT NULL
