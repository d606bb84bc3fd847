-- Purpose: audit log, the last recorded first.
-- Index: primary key, range.
SELECT number, time, who, action, target, reason FROM audit
WHERE number < ?1 ORDER BY number DESC LIMIT ?2
