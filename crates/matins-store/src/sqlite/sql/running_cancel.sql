-- Purpose: asks a run to end; the first request's time stays.
-- Index: primary key.
UPDATE running SET cancel_requested_at = ?2
WHERE seq = ?1 AND cancel_requested_at IS NULL
