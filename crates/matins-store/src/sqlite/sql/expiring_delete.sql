-- Purpose: not pending any more.
-- Index: primary key.
DELETE FROM expiring WHERE expires_at = ?1 AND seq = ?2
