-- Purpose: frees a completed key.
-- Index: exec_key_pkey.
SELECT matins.forget_key($1, $2, $3, $4, $5)
