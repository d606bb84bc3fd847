-- Purpose: the head of each pool's line, and what is due soonest after it.
-- Index: ready_pkey for each lane, scheduled_pkey; task_pkey for each row.
SELECT t.id, t.attempt, t.seq, t.priority, p.pool, r.type, t.run_at, r.needs >= 2, false
FROM (SELECT DISTINCT pool FROM matins.lane) AS p, LATERAL (
    SELECT x.seq, x.needs, l.type FROM matins.lane AS l, LATERAL (
        SELECT y.ord, y.seq, y.needs FROM matins.ready AS y WHERE y.lane = l.id
        ORDER BY y.ord, y.seq LIMIT $1) AS x
    WHERE l.pool = p.pool ORDER BY x.ord, x.seq LIMIT $1) AS r
JOIN matins.task AS t ON t.seq = r.seq
UNION ALL
SELECT t.id, t.attempt, t.seq, t.priority, l.pool, l.type, t.run_at, s.needs >= 2, true
FROM (SELECT * FROM matins.scheduled ORDER BY run_at, seq LIMIT $1) AS s
JOIN matins.task AS t ON t.seq = s.seq JOIN matins.lane AS l ON l.id = s.lane
