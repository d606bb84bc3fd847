-- Purpose: entries whose time is over.
-- Index: audit_time, range.
DELETE FROM audit
WHERE number IN (SELECT number FROM audit WHERE time <= ?1 ORDER BY time LIMIT ?2)
