-- Purpose: not held any more.
-- Index: primary key.
UPDATE task SET held = 0, run_at = ?2 WHERE seq = ?1
