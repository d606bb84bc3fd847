-- Purpose: occurrences whose records are gone.
-- Index: schedule_uid.
UPDATE schedule SET pruned = pruned + ?2 WHERE uid = ?1
