-- Purpose: an operation whose time is over.
-- Index: primary key.
DELETE FROM operation WHERE id = ?1
