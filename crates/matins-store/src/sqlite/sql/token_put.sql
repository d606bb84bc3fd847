-- Purpose: a token, new or replaced.
-- Index: primary key.
INSERT INTO token (name, value) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
