-- Purpose: waiting tasks are due now, failed ones start a new round.
-- Index: task_id.
SELECT matins.retry($1, $2, $3, $4, $5)
