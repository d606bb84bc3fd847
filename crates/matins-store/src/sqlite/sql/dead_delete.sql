-- Purpose: replayed or pruned.
-- Index: primary key.
DELETE FROM dead_letter WHERE seq = ?1
