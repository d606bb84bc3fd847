-- Purpose: the next due times and their lanes.
-- Index: primary key, range.
SELECT run_at, lane FROM scheduled WHERE run_at > ?1 ORDER BY run_at, seq LIMIT ?2
