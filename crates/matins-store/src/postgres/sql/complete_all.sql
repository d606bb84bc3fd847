-- Purpose: ends runs that completed.
-- Index: running_pkey, task_pkey, exec_key_pkey.
SELECT matins.complete_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
