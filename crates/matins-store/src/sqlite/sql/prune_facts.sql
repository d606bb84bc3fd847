-- Purpose: what pruning a task touches.
-- Index: primary key.
SELECT lane, id, execution_key, result, finished_at FROM task WHERE seq = ?1
