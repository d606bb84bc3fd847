-- Purpose: schedules that are due soonest, with their revisions.
-- Index: schedule_due, range.
SELECT s.uid, s.rev FROM matins.schedule AS s
WHERE s.next_due <= now() + $1 * interval '1 microsecond'
ORDER BY s.next_due, s.name LIMIT $2
