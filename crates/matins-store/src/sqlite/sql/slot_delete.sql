-- Purpose: it leaves the line.
-- Index: primary key.
DELETE FROM slot
WHERE type = ?1 AND key = ?2 AND stage = ?3 AND lane = ?4 AND ord = ?5 AND seq = ?6
