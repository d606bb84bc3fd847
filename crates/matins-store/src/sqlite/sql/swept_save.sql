-- Purpose: the same, changed.
-- Index: primary key.
UPDATE meta SET swept = ?1 WHERE one = 1
