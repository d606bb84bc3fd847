-- Purpose: completed tasks whose time in the ledger is over before their row is pruned.
-- Index: task_keyed, range.
SELECT finished_at, seq, lane, execution_key, id FROM task
WHERE state = 2 AND execution_key IS NOT NULL
  AND (finished_at, seq) > (?1, ?2) AND finished_at <= ?3
ORDER BY finished_at, seq LIMIT ?4
