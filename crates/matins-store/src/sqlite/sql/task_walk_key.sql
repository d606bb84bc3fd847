-- Purpose: tasks of an execution_key, the last accepted first.
-- Index: task_key, range.
SELECT * FROM task_full WHERE execution_key = ?2 AND seq < ?1 ORDER BY seq DESC
