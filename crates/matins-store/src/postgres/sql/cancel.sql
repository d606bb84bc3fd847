-- Purpose: cancels what is pending and asks what runs to end.
-- Index: running_pkey, task_id.
SELECT matins.cancel($1, $2, $3, $4)
