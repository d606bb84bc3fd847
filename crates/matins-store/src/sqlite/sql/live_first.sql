-- Purpose: the first accepted of a schedule's active or held tasks.
-- Index: primary key, prefix.
SELECT seq FROM schedule_live WHERE schedule_uid = ?1 AND held = ?2
ORDER BY seq LIMIT 1
