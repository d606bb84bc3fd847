-- Purpose: starts were taken from a rate limit.
-- Index: primary key.
INSERT INTO rate (type, spent_until) VALUES (?1, ?2)
ON CONFLICT (type) DO UPDATE SET spent_until = excluded.spent_until
