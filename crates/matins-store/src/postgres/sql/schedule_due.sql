-- Purpose: active schedules that are due, earliest first.
-- Index: schedule_due, range; schedule_live_pkey.
SELECT s.next_due, s.state,
       (SELECT count(*) FROM matins.schedule_live AS v
        WHERE v.schedule_uid = s.uid AND NOT v.held),
       (SELECT count(*) FROM matins.schedule_live AS v WHERE v.schedule_uid = s.uid AND v.held),
       coalesce((SELECT f.count FROM matins.schedule_failures AS f
                 WHERE f.schedule_uid = s.uid), 0)
FROM matins.schedule AS s WHERE s.next_due <= $1 ORDER BY s.next_due, s.name LIMIT $2
