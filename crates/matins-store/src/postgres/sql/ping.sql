-- Purpose: whether the database answers, and its clock.
-- Index: none.
SELECT clock_timestamp()
