-- Purpose: tasks, the last accepted first; read only as far as a page needs.
-- Index: primary key, range.
SELECT * FROM task_full WHERE seq < ?1 ORDER BY seq DESC
