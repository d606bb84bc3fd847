-- Purpose: some tasks, after an act.
-- Index: task_id, history_id, running_pkey.
SELECT * FROM matins.task_full WHERE id = ANY($1)
