-- Purpose: running tasks of a type.
-- Index: lane, which is small.
SELECT coalesce(sum(l.running), 0) FROM lane AS l JOIN name AS n ON n.id = l.type
WHERE n.text = ?1
