-- Purpose: whether an occurrence of the timetable has been decided.
-- Index: occurrence_label.
SELECT 1 FROM occurrence
WHERE schedule_uid = ?1 AND label = ?2 AND kind = 'scheduled'
