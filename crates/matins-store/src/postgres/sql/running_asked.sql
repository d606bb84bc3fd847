-- Purpose: running tasks of a worker that somebody wants to end.
-- Index: running_asked.
SELECT id FROM matins.running WHERE worker = $1 AND cancel_requested_at IS NOT NULL
ORDER BY fence
