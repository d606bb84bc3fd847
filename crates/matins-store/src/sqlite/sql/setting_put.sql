-- Purpose: a switch is set.
-- Index: primary key.
INSERT INTO setting (scope, name, value) VALUES (?1, ?2, ?3)
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value
