-- Purpose: numbers of all pending tasks, the last accepted first; visits what is pending.
-- Index: scans of the small tables.
SELECT seq FROM (
    SELECT seq FROM ready UNION ALL
    SELECT seq FROM scheduled UNION ALL
    SELECT seq FROM slot WHERE stage > 0 UNION ALL
    SELECT seq FROM schedule_live WHERE held = 1
) WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2
