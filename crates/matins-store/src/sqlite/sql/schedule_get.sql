-- Purpose: a schedule.
-- Index: primary key.
SELECT state FROM schedule WHERE name = ?1
