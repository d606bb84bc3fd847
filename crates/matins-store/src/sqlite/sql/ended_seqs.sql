-- Purpose: numbers of tasks that ended in a state, the last accepted first; visits all of them.
-- Index: task_ended, prefix.
SELECT seq FROM task WHERE state = ?3 AND finished_at IS NOT NULL AND seq < ?1
ORDER BY seq DESC LIMIT ?2
