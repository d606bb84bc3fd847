-- Purpose: a task with its run.
-- Index: primary keys.
SELECT * FROM task_full WHERE seq = ?1
