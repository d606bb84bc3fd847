-- Purpose: whether anything is due that has not been put in line.
-- Index: primary key, range.
SELECT 1 FROM scheduled WHERE run_at <= ?1 LIMIT 1
