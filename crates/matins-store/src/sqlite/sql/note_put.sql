-- Purpose: the same, changed.
-- Index: primary key.
INSERT INTO note (key, value) VALUES (?1, ?2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
