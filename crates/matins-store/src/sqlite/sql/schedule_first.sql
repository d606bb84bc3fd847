-- Purpose: schedules by name, from the first.
-- Index: primary key.
SELECT state FROM schedule ORDER BY name LIMIT ?1
