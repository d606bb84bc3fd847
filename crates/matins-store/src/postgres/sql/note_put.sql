-- Purpose: a word kept for the runtime.
-- Index: note_pkey.
INSERT INTO matins.note (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
