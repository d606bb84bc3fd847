-- Purpose: what pruning a task touches.
-- Index: primary key.
SELECT lane, id, execution_key, result FROM task WHERE seq = ?1
