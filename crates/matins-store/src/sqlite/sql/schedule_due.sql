-- Purpose: schedules that are due, earliest first.
-- Index: schedule_due, range.
SELECT next_due, state FROM schedule WHERE next_due IS NOT NULL AND next_due <= ?1
ORDER BY next_due, name LIMIT ?2
