-- Purpose: lanes of a pool.
-- Index: lane, which is small.
SELECT l.id FROM lane AS l JOIN name AS n ON n.id = l.pool WHERE n.text = ?1
