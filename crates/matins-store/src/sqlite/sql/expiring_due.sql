-- Purpose: pending tasks that have expired.
-- Index: primary key, range.
SELECT seq FROM expiring WHERE expires_at <= ?1 ORDER BY expires_at, seq LIMIT ?2
