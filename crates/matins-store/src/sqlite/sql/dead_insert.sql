-- Purpose: a task has failed for good; what filters ask for is copied.
-- Index: primary key.
INSERT INTO dead_letter (seq, failed_at, lane, schedule, fingerprint, tags, execution_key)
SELECT seq, finished_at, lane, schedule, coalesce(fingerprint, ''), tags, execution_key
FROM task WHERE seq = ?1
