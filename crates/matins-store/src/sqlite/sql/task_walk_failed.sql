-- Purpose: failed tasks, the last accepted first.
-- Index: dead_letter by primary key, range.
SELECT v.* FROM dead_letter AS d CROSS JOIN task_full AS v ON v.seq = d.seq
WHERE d.seq < ?1 ORDER BY d.seq DESC
