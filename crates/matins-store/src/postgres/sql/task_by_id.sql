-- Purpose: a task with its run.
-- Index: task_id, history_id, running_pkey.
SELECT * FROM matins.task_full WHERE id = $1
