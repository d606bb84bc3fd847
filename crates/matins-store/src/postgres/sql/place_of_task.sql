-- Purpose: where a pending task stands: in `ready`, or parked, and its place.
-- Index: slot_pkey, turn_pkey.
SELECT s.stage, CASE WHEN s.stage = 0 THEN s.ord
                ELSE matins.slot_place(s.stage = 1, u.freed, s.priority, s.run_at) END
FROM matins.slot AS s LEFT JOIN matins.turn AS u ON u.type = s.type AND u.key = s.key
WHERE s.type = $1 AND s.key = $2 AND s.lane = $3 AND s.seq = $4
