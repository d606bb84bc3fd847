-- Purpose: alerts whose time is over go.
-- Index: alert_at, range.
DELETE FROM alert WHERE number IN (
    SELECT number FROM alert WHERE at <= ?1 ORDER BY at, number LIMIT ?2)
