-- Purpose: where a page of failed tasks stops looking: so many of them behind a number.
-- Index: dead_letter_pkey, range.
SELECT seq FROM matins.dead_letter WHERE seq < $1 ORDER BY seq DESC OFFSET $2 LIMIT 1
