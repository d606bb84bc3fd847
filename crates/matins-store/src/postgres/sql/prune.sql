-- Purpose: deletes what is over.
-- Index: history_ended, dead_letter_dismissed, exec_key_at, occurrence_age, audit_time.
SELECT * FROM matins.prune($1, $2, $3, $4, $5, $6, $7, $8)
