-- Purpose: tasks in line whose key stands in several lanes, by key and place.
-- Index: scan of slot, only when a type has tasks in several lanes.
SELECT s.type, s.key, s.lane, s.ord, s.seq, coalesce(u.running, 0) FROM matins.slot AS s
LEFT JOIN matins.turn AS u ON u.type = s.type AND u.key = s.key
WHERE s.stage = 0 AND EXISTS (
    SELECT 1 FROM matins.slot AS o
    WHERE o.type = s.type AND o.key = s.key AND o.stage = 0 AND o.lane <> s.lane
)
ORDER BY s.type, s.key, s.ord, s.seq
