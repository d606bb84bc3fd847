-- Purpose: what a claim call was given, in the order it was given.
-- Index: scan of running, which is small.
SELECT seq, fence FROM running WHERE worker = ?1 AND token = ?2 ORDER BY fence
