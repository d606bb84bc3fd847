-- Purpose: completed tasks whose time in the ledger is over before their row is pruned.
-- Index: task_ended, range.
SELECT finished_at, lane, execution_key, id FROM task
WHERE state = 2 AND finished_at > ?1 AND finished_at <= ?2 ORDER BY finished_at LIMIT ?3
