-- Purpose: writes schedules, each from what was expected.
-- Index: schedule_pkey.
SELECT matins.put_schedules($1)
