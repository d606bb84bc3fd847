-- Purpose: a task that is known not to run, in the columns of task_full.
-- Index: primary key.
SELECT NULL, NULL, NULL, NULL, NULL, * FROM task WHERE seq = ?1
