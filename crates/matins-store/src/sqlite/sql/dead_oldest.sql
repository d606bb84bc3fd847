-- Purpose: dead letters, the first failed first.
-- Index: dead_letter_time.
SELECT failed_at, seq, lane, schedule, fingerprint, tags FROM dead_letter
WHERE dismissed_at IS NULL AND (failed_at, seq) > (?1, ?2) ORDER BY failed_at, seq
