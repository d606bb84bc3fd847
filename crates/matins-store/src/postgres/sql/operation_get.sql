-- Purpose: one operation.
-- Index: operation_pkey.
SELECT value, payload FROM matins.operation WHERE id = $1
