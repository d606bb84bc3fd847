-- Purpose: a schedule.
-- Index: name.
SELECT state FROM schedule WHERE name = ?1
