-- Purpose: out of line.
-- Index: primary key.
DELETE FROM ready WHERE lane = ?1 AND ord = ?2 AND seq = ?3
