-- Purpose: alerts before a number, the last first.
-- Index: alert_pkey, range.
SELECT number, at, rule, subject, severity, resolved, facts FROM matins.alert
WHERE number < $1 ORDER BY number DESC LIMIT $2
