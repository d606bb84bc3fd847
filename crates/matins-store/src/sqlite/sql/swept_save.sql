-- Purpose: the same, changed.
-- Index: primary key.
UPDATE meta SET swept_at = ?1, swept_seq = ?2 WHERE one = 1
