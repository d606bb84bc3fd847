-- Purpose: an operation, new or changed.
-- Index: primary key.
INSERT INTO operation (id, running, created_at, value, payload) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO UPDATE
SET running = excluded.running, value = excluded.value, payload = excluded.payload
