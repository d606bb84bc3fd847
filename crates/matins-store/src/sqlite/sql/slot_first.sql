-- Purpose: the first of a stage in a lane.
-- Index: primary key, range.
SELECT ord, seq, priority, run_at FROM slot
WHERE type = ?1 AND key = ?2 AND stage = ?3 AND lane = ?4 ORDER BY ord, seq LIMIT 1
