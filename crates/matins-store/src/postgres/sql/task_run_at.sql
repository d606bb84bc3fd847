-- Purpose: when tasks became due.
-- Index: task_pkey.
SELECT seq, run_at FROM matins.task WHERE seq = ANY($1)
