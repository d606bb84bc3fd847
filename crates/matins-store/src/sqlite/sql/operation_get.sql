-- Purpose: an operation.
-- Index: primary key.
SELECT value, payload FROM operation WHERE id = ?1
