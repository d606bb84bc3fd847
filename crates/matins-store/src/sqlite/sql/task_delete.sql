-- Purpose: pruned.
-- Index: primary key.
DELETE FROM task WHERE seq = ?1
