-- Purpose: no longer due later.
-- Index: primary key.
DELETE FROM scheduled WHERE run_at = ?1 AND seq = ?2
