-- Purpose: operations that run, oldest first.
-- Index: operation_running.
SELECT value, payload FROM matins.operation WHERE running ORDER BY created_at
