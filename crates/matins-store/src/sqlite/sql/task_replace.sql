-- Purpose: payload and times of a newer request.
-- Index: primary key.
UPDATE task SET payload = ?2, concurrency_key = ?3, run_at = ?4, expires_at = ?5
WHERE seq = ?1
