-- Purpose: one more dead letter of a schedule in a row.
-- Index: primary key.
INSERT INTO schedule_failures (schedule_uid, count) VALUES (?1, 1)
ON CONFLICT (schedule_uid) DO UPDATE SET count = count + 1
