-- Purpose: cancels what was taken in Redis.
-- Index: running_pkey, task_id.
SELECT matins.cancel($1, $2, $3, $4)
FROM (SELECT matins.taken($5, $1, $6) AS ids OFFSET 0) AS w
WHERE cardinality(w.ids) = cardinality($1)
