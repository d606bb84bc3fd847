-- Purpose: id of an interned name.
-- Index: the UNIQUE of name.text.
SELECT id FROM name WHERE text = ?1
