-- Purpose: how many tasks each pool has in each place.
-- Index: scan of tally, which is folded now and then, and of running, which is small.
SELECT l.pool, c.place, sum(c.n)::bigint FROM (
    SELECT lane, place, n FROM matins.tally
    UNION ALL
    SELECT lane, 5, 1 FROM matins.running
) AS c JOIN matins.lane AS l ON l.id = c.lane
GROUP BY l.pool, c.place
