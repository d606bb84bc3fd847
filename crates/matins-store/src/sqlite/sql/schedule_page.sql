-- Purpose: schedules by name.
-- Index: name, range.
SELECT state FROM schedule WHERE name > ?1 ORDER BY name LIMIT ?2
