-- Purpose: lanes that have something in line, and their pools.
-- Index: scan of lane, which is small.
SELECT l.id, n.text, l.ready FROM lane AS l JOIN name AS n ON n.id = l.pool WHERE l.ready > 0
