-- Purpose: what has become due, earliest first.
-- Index: primary key, range.
SELECT run_at, seq, lane, ord, keyed FROM scheduled WHERE run_at <= ?1
ORDER BY run_at, seq LIMIT ?2
