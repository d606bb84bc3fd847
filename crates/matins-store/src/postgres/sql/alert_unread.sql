-- Purpose: alerts that wait to be told, the first raised first.
-- Index: alert_unread, in order.
SELECT number, at, rule, subject, severity, resolved, facts FROM matins.alert
WHERE NOT read ORDER BY number LIMIT $1
