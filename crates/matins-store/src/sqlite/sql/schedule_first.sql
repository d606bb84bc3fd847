-- Purpose: schedules by name, from the first.
-- Index: name.
SELECT state FROM schedule ORDER BY name LIMIT ?1
