-- Purpose: an interned name.
-- Index: primary key.
SELECT text FROM name WHERE id = ?1
