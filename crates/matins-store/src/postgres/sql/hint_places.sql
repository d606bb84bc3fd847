-- Purpose: where some tasks wait, of those that are pending.
-- Index: task_id; scheduled_pkey, running_pkey.
SELECT * FROM matins.hint_places($1)
