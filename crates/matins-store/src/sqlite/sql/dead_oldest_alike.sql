-- Purpose: dead letters with one fingerprint, the first failed first.
-- Index: dead_letter_group, range.
SELECT failed_at, seq, lane, schedule, fingerprint, tags FROM dead_letter
WHERE dismissed_at IS NULL AND fingerprint = ?3 AND (failed_at, seq) > (?1, ?2)
ORDER BY failed_at, seq
