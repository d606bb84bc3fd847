-- Purpose: the state of whose turn it is.
-- Index: primary key.
UPDATE desk SET state = ?2 WHERE one = 1 AND teller = ?1
