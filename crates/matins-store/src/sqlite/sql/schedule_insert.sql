-- Purpose: a new schedule.
-- Index: primary key.
INSERT INTO schedule (name, uid, rev, next_due, state) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO NOTHING
