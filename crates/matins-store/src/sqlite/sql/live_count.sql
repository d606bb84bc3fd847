-- Purpose: how many of a schedule's tasks are active or held.
-- Index: primary key, prefix.
SELECT count(*) FROM schedule_live WHERE schedule_uid = ?1 AND held = ?2
