-- Purpose: an operation.
-- Index: primary key.
SELECT value FROM operation WHERE id = ?1
