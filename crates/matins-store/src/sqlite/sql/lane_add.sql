-- Purpose: a new lane.
-- Index: -.
INSERT INTO lane (pool, type, quarantine) VALUES (?1, ?2, ?3)
