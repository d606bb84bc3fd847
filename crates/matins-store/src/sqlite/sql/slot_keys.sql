-- Purpose: keys of a type with tasks in line, when its limit has changed.
-- Index: primary key, prefix.
SELECT DISTINCT key FROM slot WHERE type = ?1
