-- Purpose: running tasks in quarantine.
-- Index: lane, which is small.
SELECT coalesce(sum(running), 0) FROM lane WHERE quarantine = 1
