-- Purpose: figures of the store, in one look.
-- Index: scheduled_pkey, first; scan of tally, which is folded now and then, of running, which is
-- small, and of slot, only when a type has tasks in several lanes; ready_pkey, first of each lane;
-- schedule_due, range.
--
-- Whether something is due that no claim has put in line; how many changes wait to be folded; tasks
-- of each pool and place; tasks in line whose key stands in several lanes (`slot_rivals`); the
-- first few of each lane in line, and how many it has; overdue schedules.
WITH sums AS MATERIALIZED (
    SELECT lane, place, sum(n)::bigint AS n, count(*) AS changes FROM matins.tally GROUP BY 1, 2
), spread AS MATERIALIZED (
    SELECT l.type FROM sums AS s JOIN matins.lane AS l ON l.id = s.lane
    WHERE s.place = 1 AND s.n > 0 GROUP BY l.type HAVING count(*) > 1
), rivals AS MATERIALIZED (
    SELECT s.type, s.key, s.lane, s.ord, s.seq, coalesce(u.running, 0) AS running
    FROM matins.slot AS s LEFT JOIN matins.turn AS u ON u.type = s.type AND u.key = s.key
    WHERE EXISTS (SELECT 1 FROM spread) AND s.stage = 0 AND EXISTS (
        SELECT 1 FROM matins.slot AS o
        WHERE o.type = s.type AND o.key = s.key AND o.stage = 0 AND o.lane <> s.lane)
), places AS (
    SELECT l.pool, c.place, sum(c.n)::bigint AS n FROM (
        SELECT lane, place, n FROM sums
        UNION ALL
        SELECT lane, 5, count(*) FROM matins.running GROUP BY lane
    ) AS c JOIN matins.lane AS l ON l.id = c.lane
    GROUP BY l.pool, c.place
), heads AS (
    SELECT l.id, l.pool, h.ord, h.seq, matins.micros(t.run_at) AS run_at, coalesce(s.n, 0) AS n
    FROM matins.lane AS l LEFT JOIN sums AS s ON s.lane = l.id AND s.place = 1,
    LATERAL (SELECT ord, seq FROM matins.ready AS r WHERE r.lane = l.id
             ORDER BY ord, seq LIMIT 1 + (SELECT count(*) FROM rivals)) AS h,
    LATERAL (SELECT run_at FROM matins.task WHERE seq = h.seq LIMIT 1) AS t
)
SELECT (SELECT run_at <= $1 FROM matins.scheduled ORDER BY run_at, seq LIMIT 1),
    (SELECT coalesce(sum(changes), 0)::bigint FROM sums),
    (SELECT json_agg(json_build_array(pool, place, n)) FROM places),
    (SELECT json_agg(json_build_array(type, key, lane, ord, seq, running)
                     ORDER BY type, key, ord, seq) FROM rivals),
    (SELECT json_agg(json_build_array(id, pool, ord, seq, run_at, n) ORDER BY id, ord, seq)
     FROM heads),
    (SELECT count(*) FROM matins.schedule WHERE next_due < $2)
