-- Purpose: all lanes.
-- Index: scan of lane, which is small.
SELECT id, pool, type FROM matins.lane
