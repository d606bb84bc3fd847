-- Purpose: what has become due was moved.
-- Index: primary key, range.
DELETE FROM scheduled WHERE (run_at, seq) <= (?1, ?2)
