-- Purpose: identity and revision of a schedule.
-- Index: name.
SELECT uid, rev FROM schedule WHERE name = ?1
