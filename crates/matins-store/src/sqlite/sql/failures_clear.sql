-- Purpose: a task of the schedule has completed.
-- Index: primary key.
DELETE FROM schedule_failures WHERE schedule_uid = ?1
