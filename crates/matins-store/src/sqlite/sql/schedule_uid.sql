-- Purpose: identity and revision of a schedule.
-- Index: primary key.
SELECT uid, rev FROM schedule WHERE name = ?1
