-- Purpose: figures per pool, with names.
-- Index: lane, which is small; name by primary key.
SELECT n.text, sum(l.ready), sum(l.later + l.parked + l.held), sum(l.running),
       sum(l.completed), sum(l.failed), sum(l.cancelled), sum(l.dead)
FROM lane AS l JOIN name AS n ON n.id = l.pool GROUP BY l.pool
