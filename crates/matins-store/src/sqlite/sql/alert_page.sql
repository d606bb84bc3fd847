-- Purpose: alerts, the last raised first.
-- Index: primary key, range.
SELECT number, at, rule, subject, severity, resolved, facts FROM alert
WHERE number < ?1 ORDER BY number DESC LIMIT ?2
