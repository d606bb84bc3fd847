-- Purpose: pools with tasks whose place depends on other tasks, and how many were looked at.
-- Index: none; reads a bounded number of rows of slot, and the held ones of schedule_live.
WITH tied AS MATERIALIZED (
    (SELECT lane FROM matins.slot LIMIT $1)
    UNION ALL
    (SELECT t.lane FROM (SELECT seq FROM matins.schedule_live WHERE held LIMIT $1) AS h
     JOIN matins.task AS t ON t.seq = h.seq))
SELECT p.pool, coalesce(n.n, 0)::bigint
FROM (SELECT DISTINCT pool FROM matins.lane) AS p
LEFT JOIN (SELECT l.pool, count(*) AS n FROM tied JOIN matins.lane AS l ON l.id = tied.lane
           GROUP BY l.pool) AS n ON n.pool = p.pool
