-- Purpose: which of some tasks wait, and whether Redis must be asked about them.
-- Index: task_id.
SELECT * FROM matins.waiting_tasks($1, $2)
