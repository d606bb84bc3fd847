-- Purpose: occurrences whose records are gone.
-- Index: schedule_uid.
UPDATE schedule SET unrecorded = unrecorded + ?2 WHERE uid = ?1
