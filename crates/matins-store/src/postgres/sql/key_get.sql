-- Purpose: who has a key.
-- Index: exec_key_pkey.
SELECT id, at, result FROM matins.exec_key WHERE type = $1 AND key = $2
