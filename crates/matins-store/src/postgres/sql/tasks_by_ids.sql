-- Purpose: some tasks, after an act.
-- Index: task_id, else history_id; running_pkey.
SELECT * FROM matins.find_tasks($1)
