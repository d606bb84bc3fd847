-- Purpose: a word kept for the runtime.
-- Index: note_pkey.
SELECT value FROM matins.note WHERE key = $1
