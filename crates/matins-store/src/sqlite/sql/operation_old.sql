-- Purpose: operations begun long ago that are not running any more, and when they finished.
-- Index: scan of operation, one row per act of a person, in maintenance.
SELECT id, json_extract(value, '$.finished_at') FROM operation
WHERE running = 0 AND created_at <= ?1
