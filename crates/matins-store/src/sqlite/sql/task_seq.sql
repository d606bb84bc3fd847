-- Purpose: where a task is stored.
-- Index: task_id.
SELECT seq FROM task WHERE id = ?1
