-- Purpose: pruned.
-- Index: primary key.
DELETE FROM occurrence WHERE number = ?1
