-- Purpose: schedules whose marks are to be mirrored, with one task that holds each.
-- Index: schedule_uid; schedule_live_pkey; task_pkey.
SELECT s.next_due, s.state,
       (SELECT count(*) FROM matins.schedule_live AS v
        WHERE v.schedule_uid = s.uid AND NOT v.held),
       (SELECT count(*) FROM matins.schedule_live AS v WHERE v.schedule_uid = s.uid AND v.held),
       coalesce((SELECT f.count FROM matins.schedule_failures AS f
                 WHERE f.schedule_uid = s.uid), 0),
       (SELECT t.id FROM matins.schedule_live AS v JOIN matins.task AS t ON t.seq = v.seq
        WHERE v.schedule_uid = s.uid LIMIT 1)
FROM matins.schedule AS s WHERE s.uid = ANY($1) AND s.next_due IS NOT NULL
