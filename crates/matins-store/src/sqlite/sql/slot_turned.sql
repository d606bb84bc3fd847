-- Purpose: the turn that a parked task waits for, if it was in line at one.
-- Index: primary keys.
SELECT u.freed FROM slot AS s JOIN turn AS u ON u.type = s.type AND u.key = s.key
WHERE s.type = ?1 AND s.key = ?2 AND s.stage = 1 AND s.lane = ?3 AND s.ord = -?5 AND s.seq = ?4
