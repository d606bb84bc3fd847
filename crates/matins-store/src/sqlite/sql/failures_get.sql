-- Purpose: dead letters of a schedule in a row.
-- Index: primary key.
SELECT count FROM schedule_failures WHERE schedule_uid = ?1
