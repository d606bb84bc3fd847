-- Purpose: live tasks of a schedule, and its dead letters since the last completion.
-- Index: schedule_live_pkey, schedule_failures_pkey.
SELECT (SELECT count(*) FROM matins.schedule_live AS v
        WHERE v.schedule_uid = $1 AND NOT v.held),
       (SELECT count(*) FROM matins.schedule_live AS v WHERE v.schedule_uid = $1 AND v.held),
       coalesce((SELECT f.count FROM matins.schedule_failures AS f
                 WHERE f.schedule_uid = $1), 0)
