-- Purpose: when the next schedule is due.
-- Index: schedule_due, first.
SELECT min(next_due) FROM matins.schedule WHERE next_due > $1
