-- Purpose: a task with its run.
-- Index: task_id, else history_id; running_pkey.
SELECT * FROM matins.find_task($1)
