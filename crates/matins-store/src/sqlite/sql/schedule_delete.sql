-- Purpose: a schedule is removed; its history stays.
-- Index: name.
DELETE FROM schedule WHERE name = ?1
