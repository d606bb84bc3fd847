-- Purpose: pools that have had tasks.
-- Index: scan of lane, which is small.
SELECT DISTINCT pool FROM matins.lane
