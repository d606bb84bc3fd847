-- Purpose: a plan that was made while the database was away, applied once.
-- Index: journal_entry_pkey, schedule_pkey, occurrence_label.
SELECT matins.replay_fire($1, $2, $3)
