-- Purpose: how many active schedules are late.
-- Index: schedule_due, range.
SELECT count(*) FROM schedule WHERE next_due IS NOT NULL AND next_due < ?1
