-- Purpose: a worker's entry is taken away; kept while it has claims.
-- Index: primary key.
UPDATE worker SET retired = 1 WHERE name = ?1
