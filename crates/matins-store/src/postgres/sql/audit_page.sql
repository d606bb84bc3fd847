-- Purpose: acts before a number, the last first.
-- Index: audit_pkey, range.
SELECT number, time, who, action, target, reason FROM matins.audit WHERE number < $1
ORDER BY number DESC LIMIT $2
