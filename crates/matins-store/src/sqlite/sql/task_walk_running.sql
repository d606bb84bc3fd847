-- Purpose: running tasks, the last accepted first.
-- Index: running by primary key, range.
SELECT v.* FROM running AS x CROSS JOIN task_full AS v ON v.seq = x.seq
WHERE x.seq < ?1 ORDER BY x.seq DESC
