-- Purpose: completed without a run, because its key had completed.
-- Index: primary key; writes task_ended.
UPDATE task SET state = 2, held = 0, finished_at = ?2, deduplicated = 1, result = ?3
WHERE seq = ?1
