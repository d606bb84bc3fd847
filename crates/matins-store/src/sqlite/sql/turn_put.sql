-- Purpose: the same, changed.
-- Index: primary key.
INSERT INTO turn (type, key, running, freed) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (type, key) DO UPDATE SET running = excluded.running, freed = excluded.freed
