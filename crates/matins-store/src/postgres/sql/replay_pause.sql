-- Purpose: a pool that was stopped while the database was away.
-- Index: journal_entry_pkey, setting_pkey.
SELECT matins.replay_pause($1, $2, $3, $4, $5)
