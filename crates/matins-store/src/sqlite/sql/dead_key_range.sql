-- Purpose: failed tasks whose keys begin alike.
-- Index: dead_letter_key, range.
SELECT seq FROM dead_letter WHERE execution_key >= ?1 AND execution_key < ?2 LIMIT ?3
