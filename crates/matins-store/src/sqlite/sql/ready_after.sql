-- Purpose: what follows in a lane.
-- Index: primary key, range.
SELECT ord, seq FROM ready WHERE lane = ?1 AND (ord, seq) > (?2, ?3)
ORDER BY ord, seq LIMIT ?4
