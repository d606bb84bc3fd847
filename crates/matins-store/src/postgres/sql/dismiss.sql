-- Purpose: puts dead letters aside.
-- Index: task_id.
SELECT matins.dismiss($1, $2, $3, $4, $5)
