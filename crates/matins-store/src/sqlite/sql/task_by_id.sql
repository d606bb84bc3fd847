-- Purpose: a task with its run.
-- Index: task_id, running by primary key.
SELECT * FROM task_full WHERE id = ?1
