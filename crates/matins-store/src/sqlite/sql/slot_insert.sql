-- Purpose: a task of a concurrency_key comes in line.
-- Index: primary key.
INSERT INTO slot (type, key, stage, lane, ord, seq, priority, run_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
