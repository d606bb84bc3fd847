-- Purpose: removes a schedule and what it holds.
-- Index: schedule_pkey.
SELECT matins.remove_schedule($1, $2, $3, $4)
