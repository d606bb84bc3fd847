-- Purpose: a claim that was made while the database was away.
-- Index: journal_entry_pkey, task_id, running_pkey.
SELECT matins.replay_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
