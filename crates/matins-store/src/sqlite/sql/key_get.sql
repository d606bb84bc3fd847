-- Purpose: who has a key.
-- Index: primary key.
SELECT id, at, result FROM exec_key WHERE type = ?1 AND key = ?2
