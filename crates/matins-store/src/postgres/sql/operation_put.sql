-- Purpose: an operation, new or as it is now.
-- Index: operation_pkey.
INSERT INTO matins.operation (id, running, created_at, finished_at, value, payload)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (id) DO UPDATE SET running = excluded.running, finished_at = excluded.finished_at,
    value = excluded.value, payload = excluded.payload
