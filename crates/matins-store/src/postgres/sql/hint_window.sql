-- Purpose: the head of each pool's line, and what is due soonest after it; and, without a task, each
-- pool with how many of its tasks have a place that depends on other tasks, as far as was looked.
-- Index: ready_pkey for each lane, scheduled_pkey; task_pkey for each row, whatever the statistics
-- say: LIMIT keeps the planner from reading all tasks.
WITH tied AS MATERIALIZED (
    (SELECT lane FROM matins.slot LIMIT $2)
    UNION ALL
    (SELECT t.lane FROM (SELECT seq FROM matins.schedule_live WHERE held LIMIT $2) AS h,
         LATERAL (SELECT lane FROM matins.task WHERE seq = h.seq LIMIT 1) AS t)
)
SELECT NULL::uuid, NULL::integer, coalesce(n.n, 0)::bigint, NULL::smallint, p.pool, NULL::text,
       NULL::timestamptz, NULL::boolean, NULL::boolean
FROM (SELECT DISTINCT pool FROM matins.lane) AS p
LEFT JOIN (SELECT l.pool, count(*) AS n FROM tied JOIN matins.lane AS l ON l.id = tied.lane
           GROUP BY l.pool) AS n ON n.pool = p.pool
UNION ALL
SELECT t.id, t.attempt, t.seq, t.priority, p.pool, r.type, t.run_at, r.needs >= 2, false
FROM (SELECT DISTINCT pool FROM matins.lane) AS p, LATERAL (
    SELECT x.seq, x.needs, l.type FROM matins.lane AS l, LATERAL (
        SELECT y.ord, y.seq, y.needs FROM matins.ready AS y WHERE y.lane = l.id
        ORDER BY y.ord, y.seq LIMIT $1) AS x
    WHERE l.pool = p.pool ORDER BY x.ord, x.seq LIMIT $1) AS r,
    LATERAL (SELECT * FROM matins.task WHERE seq = r.seq LIMIT 1) AS t
UNION ALL
SELECT t.id, t.attempt, t.seq, t.priority, l.pool, l.type, t.run_at, s.needs >= 2, true
FROM (SELECT * FROM matins.scheduled ORDER BY run_at, seq LIMIT $1) AS s,
    LATERAL (SELECT * FROM matins.task WHERE seq = s.seq LIMIT 1) AS t
JOIN matins.lane AS l ON l.id = t.lane
