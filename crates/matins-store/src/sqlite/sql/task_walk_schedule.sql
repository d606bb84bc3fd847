-- Purpose: tasks of a schedule, the last accepted first.
-- Index: task_schedule, range.
SELECT * FROM task_full WHERE schedule = ?2 AND seq < ?1 ORDER BY seq DESC
