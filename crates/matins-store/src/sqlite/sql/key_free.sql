-- Purpose: the task of a key failed or was cancelled.
-- Index: primary key.
DELETE FROM exec_key WHERE type = ?1 AND key = ?2 AND id = ?3 AND at IS NULL
