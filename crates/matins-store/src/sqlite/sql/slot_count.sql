-- Purpose: tasks of a key that stand in a lane, not parked; at most per_key.
-- Index: primary key, prefix.
SELECT count(*) FROM slot WHERE type = ?1 AND key = ?2 AND stage = 0 AND lane = ?3
