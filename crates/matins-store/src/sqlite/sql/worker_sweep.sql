-- Purpose: retired entries without claims; visits what runs.
-- Index: scan of worker, which is small.
DELETE FROM worker WHERE retired = 1 AND name NOT IN (SELECT worker FROM running)
