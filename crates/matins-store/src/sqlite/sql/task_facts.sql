-- Purpose: what placing and ending a task depend on.
-- Index: primary key.
SELECT id, lane, priority, run_at, held, execution_key, concurrency_key, expires_at, schedule_uid
FROM task WHERE seq = ?1
