-- Purpose: a schedule is removed; its history stays.
-- Index: primary key.
DELETE FROM schedule WHERE name = ?1
