-- Purpose: keys that have been idle for long.
-- Index: scan of turn, one row per key, in maintenance.
DELETE FROM turn
WHERE (type, key) IN (
    SELECT type, key FROM turn AS t
    WHERE running = 0 AND coalesce(freed, 0) < ?1
      AND NOT EXISTS (SELECT 1 FROM slot AS s WHERE s.type = t.type AND s.key = t.key)
    LIMIT ?2
)
