-- Purpose: the task of a key failed, was cancelled or is forgotten.
-- Index: primary key.
DELETE FROM exec_key WHERE type = ?1 AND key = ?2 AND id = ?3
