-- Purpose: tasks in line whose key stands in several lanes, by key and place.
-- Index: scan of slot, only when a type has tasks in several lanes.
SELECT s.type, s.key, s.lane, s.ord, s.seq, coalesce(u.running, 0) FROM matins.slot AS s
LEFT JOIN matins.turn AS u ON u.type = s.type AND u.key = s.key
WHERE EXISTS (
    SELECT 1 FROM (
        SELECT lane FROM matins.tally WHERE place = 1 GROUP BY lane HAVING sum(n) > 0
    ) AS t JOIN matins.lane AS l ON l.id = t.lane
    GROUP BY l.type HAVING count(*) > 1
) AND s.stage = 0 AND EXISTS (
    SELECT 1 FROM matins.slot AS o
    WHERE o.type = s.type AND o.key = s.key AND o.stage = 0 AND o.lane <> s.lane
)
ORDER BY s.type, s.key, s.ord, s.seq
