-- Purpose: tasks that wait and may be in the mirror, as they are copied there.
-- Index: task_id, running_pkey.
SELECT * FROM matins.mirrored_tasks($1)
