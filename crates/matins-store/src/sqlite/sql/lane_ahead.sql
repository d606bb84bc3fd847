-- Purpose: tasks of a lane before a place; counts no further than told.
-- Index: ready by primary key, range.
SELECT count(*) FROM (
    SELECT 1 FROM ready WHERE lane = ?1 AND (ord, seq) < (?2, ?3) LIMIT ?4
)
