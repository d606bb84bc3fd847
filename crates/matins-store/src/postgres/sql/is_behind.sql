-- Purpose: whether something is due that no claim has put in line yet.
-- Index: scheduled_pkey, first.
SELECT 1 FROM matins.scheduled WHERE run_at <= $1 LIMIT 1
