-- Purpose: up to when keys of completed tasks are over.
-- Index: primary key.
SELECT swept FROM meta WHERE one = 1
