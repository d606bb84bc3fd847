-- Purpose: an alert whose time is over.
-- Index: alert_at, range.
SELECT 1 FROM alert WHERE at <= ?1 LIMIT ?2
