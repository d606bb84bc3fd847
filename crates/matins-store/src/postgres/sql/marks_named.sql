-- Purpose: revisions of named schedules.
-- Index: schedule_pkey.
SELECT s.uid, s.rev FROM matins.schedule AS s WHERE s.name = ANY($1)
