-- Purpose: tasks whose id begins alike.
-- Index: task_id, range.
SELECT seq FROM task WHERE id >= ?1 AND id <= ?2 LIMIT ?3
