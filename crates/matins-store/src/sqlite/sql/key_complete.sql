-- Purpose: the task of a key has completed.
-- Index: primary key; writes exec_key_at.
UPDATE exec_key SET at = ?4 WHERE type = ?1 AND key = ?2 AND id = ?3
