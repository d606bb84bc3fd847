-- Purpose: the first few rows of each lane in line, and how many it has.
-- Index: ready_pkey, first of each lane; scan of tally.
SELECT l.id, l.pool, h.ord, h.seq,
       (SELECT coalesce(sum(n), 0)::bigint FROM matins.tally WHERE lane = l.id AND place = 1)
FROM matins.lane AS l, LATERAL (
    SELECT ord, seq FROM matins.ready AS r WHERE r.lane = l.id ORDER BY ord, seq LIMIT $1
) AS h
ORDER BY l.id, h.ord, h.seq
