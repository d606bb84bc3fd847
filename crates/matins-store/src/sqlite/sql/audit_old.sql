-- Purpose: an entry whose time is over.
-- Index: audit_time, range.
SELECT 1 FROM audit WHERE time <= ?1 LIMIT ?2
