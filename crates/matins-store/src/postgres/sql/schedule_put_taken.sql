-- Purpose: writes schedules whose marks were taken in Redis; NULL: not under that generation.
-- Index: schedule_pkey.
SELECT CASE WHEN matins.under($2) THEN matins.put_schedules($1) END
