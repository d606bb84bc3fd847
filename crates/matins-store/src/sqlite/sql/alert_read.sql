-- Purpose: the one who tells has it.
-- Index: primary key.
UPDATE alert SET read = 1 WHERE number = ?1
