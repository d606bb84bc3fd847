-- Purpose: when a task is due.
-- Index: primary key.
SELECT run_at FROM task WHERE seq = ?1
