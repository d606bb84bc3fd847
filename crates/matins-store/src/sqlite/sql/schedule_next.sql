-- Purpose: when the first schedule is due that is not due yet.
-- Index: schedule_due, range.
SELECT next_due FROM schedule WHERE next_due IS NOT NULL AND next_due > ?1
ORDER BY next_due LIMIT 1
