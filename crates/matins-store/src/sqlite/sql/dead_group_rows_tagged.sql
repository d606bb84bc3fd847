-- Purpose: dead letters by fingerprint and time, with their tags.
-- Index: dead_letter_group.
SELECT failed_at, seq, lane, schedule, fingerprint, tags FROM dead_letter
WHERE dismissed_at IS NULL ORDER BY fingerprint, failed_at, seq
