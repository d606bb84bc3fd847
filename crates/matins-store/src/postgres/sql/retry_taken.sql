-- Purpose: what waits and was taken in Redis is due now.
-- Index: task_id.
SELECT matins.retry($1, $2, $3, $4, $5)
FROM (SELECT matins.taken($6, $1, $7) AS ids OFFSET 0) AS w
WHERE cardinality(w.ids) = cardinality($1)
