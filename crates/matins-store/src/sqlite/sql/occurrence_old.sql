-- Purpose: records of occurrences whose time is over.
-- Index: occurrence_age, range.
SELECT number, schedule_uid, count, kind FROM occurrence
WHERE coalesce(fired_at, time) <= ?1 ORDER BY coalesce(fired_at, time) LIMIT ?2
