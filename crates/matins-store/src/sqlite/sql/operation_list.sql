-- Purpose: running operations, oldest first.
-- Index: operation_running.
SELECT value, payload FROM operation WHERE running = 1 ORDER BY created_at
