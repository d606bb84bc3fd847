-- Purpose: dead letters by fingerprint and time.
-- Index: dead_letter_group, covering.
SELECT failed_at, seq, lane, schedule, fingerprint, NULL FROM dead_letter
WHERE dismissed_at IS NULL ORDER BY fingerprint, failed_at, seq
