-- Purpose: tasks that may be mirrored, soonest first.
-- Index: ready_pkey for each lane, scheduled_pkey; task_pkey for each row.
SELECT * FROM matins.mirror_window(now() + $1 * interval '1 microsecond', $2)
