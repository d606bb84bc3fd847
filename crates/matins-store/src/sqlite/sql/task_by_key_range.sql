-- Purpose: tasks whose execution_key begins alike.
-- Index: task_key, range.
SELECT seq FROM task WHERE execution_key >= ?1 AND execution_key < ?2 LIMIT ?3
