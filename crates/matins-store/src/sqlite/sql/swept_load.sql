-- Purpose: up to where keys of completed tasks are over.
-- Index: primary key.
SELECT swept_at, swept_seq FROM meta WHERE one = 1
