-- Purpose: a key takes turns: what is in line lines up anew.
-- Index: primary key, prefix.
INSERT INTO slot (type, key, stage, lane, ord, seq, priority, run_at)
SELECT type, key, 1, lane, -priority, seq, priority, run_at FROM slot
WHERE type = ?1 AND key = ?2 AND stage = 2 AND run_at <= ?3
