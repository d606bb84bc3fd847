-- Purpose: puts in line what has become due.
-- Index: scheduled_pkey, range.
SELECT matins.catch_up($1, $2)
