-- Purpose: a live task of a schedule.
-- Index: primary key.
INSERT INTO schedule_live (schedule_uid, held, seq) VALUES (?1, ?2, ?3)
