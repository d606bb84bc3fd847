-- Purpose: how many stand before a place in each lane of a pool, up to a limit each.
-- Index: ready_pkey, range of each lane.
SELECT l.id, (SELECT count(*) FROM (
    SELECT 1 FROM matins.ready AS r WHERE r.lane = l.id AND (r.ord, r.seq) < ($2, $3) LIMIT $4
) AS x)
FROM matins.lane AS l WHERE l.pool = $1
