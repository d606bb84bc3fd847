-- Purpose: alerts that wait to be told, the first raised first.
-- Index: alert_unread, in order.
SELECT number, at, rule, subject, severity, resolved, facts FROM alert
WHERE read = 0 ORDER BY number LIMIT ?1
