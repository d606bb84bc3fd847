-- Purpose: dead letters put aside long enough ago.
-- Index: dead_letter_dismissed, range.
SELECT dismissed_at, seq FROM dead_letter
WHERE dismissed_at IS NOT NULL AND dismissed_at <= ?1 ORDER BY dismissed_at LIMIT ?2
