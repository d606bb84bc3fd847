-- Purpose: schedules by the time they are due, and one more.
-- Index: schedule_due.
SELECT next_due, state FROM schedule WHERE next_due IS NOT NULL
ORDER BY next_due, name LIMIT ?1
