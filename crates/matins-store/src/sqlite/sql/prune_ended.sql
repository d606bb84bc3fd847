-- Purpose: tasks that ended in a state long enough ago.
-- Index: task_ended, range.
SELECT finished_at, seq FROM task
WHERE state = ?1 AND finished_at IS NOT NULL AND finished_at <= ?2
ORDER BY finished_at LIMIT ?3
