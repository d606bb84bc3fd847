-- Purpose: schedules that should have been decided by then.
-- Index: schedule_due, range.
SELECT count(*) FROM matins.schedule WHERE next_due < $1
