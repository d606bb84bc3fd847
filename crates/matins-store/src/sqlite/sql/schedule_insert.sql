-- Purpose: a new schedule; what its balance counts so far has no records here.
-- Index: name.
INSERT INTO schedule (name, uid, rev, next_due, state, decided, unrecorded)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
ON CONFLICT (name) DO NOTHING
