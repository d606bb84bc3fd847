-- Purpose: a word of the runtime's own.
-- Index: primary key.
SELECT value FROM note WHERE key = ?1
