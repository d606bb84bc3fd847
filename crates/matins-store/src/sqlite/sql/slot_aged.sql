-- Purpose: the rows that slot_age has copied.
-- Index: primary key, prefix.
DELETE FROM slot WHERE type = ?1 AND key = ?2 AND stage = 2 AND run_at <= ?3
