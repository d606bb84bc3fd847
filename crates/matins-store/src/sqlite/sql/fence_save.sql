-- Purpose: high-water mark of fences.
-- Index: primary key.
UPDATE meta SET fence = ?1 WHERE one = 1
