-- Purpose: a task that was cancelled while the database was away.
-- Index: journal_entry_pkey, task_id, running_pkey.
SELECT matins.replay_cancel($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
