-- Purpose: another due time, and another payload if one is given.
-- Index: primary key.
UPDATE task SET run_at = ?2, payload = coalesce(?3, payload) WHERE seq = ?1
