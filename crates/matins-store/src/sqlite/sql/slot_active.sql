-- Purpose: place in line of a task, if it is not parked; visits at most per_key rows.
-- Index: primary key, prefix.
SELECT ord FROM slot
WHERE type = ?1 AND key = ?2 AND stage = 0 AND lane = ?3 AND seq = ?4
