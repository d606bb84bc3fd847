-- Purpose: the head of a lane.
-- Index: primary key, range.
SELECT ord, seq FROM ready WHERE lane = ?1 ORDER BY ord, seq LIMIT ?2
