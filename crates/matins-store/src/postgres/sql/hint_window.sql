-- Purpose: the head of each pool's line, and what is due soonest after it; and the pools.
-- Index: ready_pkey for each lane, scheduled_pkey; task_pkey for each row.
SELECT * FROM matins.hint_window($1, $2)
