-- Purpose: whether a type has tasks in line in several lanes.
-- Index: scan of lane, which is small.
SELECT 1 FROM lane WHERE ready > 0 GROUP BY type HAVING count(*) > 1 LIMIT 1
