-- Purpose: a task as it is accepted; an id that is stored already is left alone.
-- Index: task_id.
INSERT INTO task (
    id, state, lane, schedule, execution_key, tags, priority, run_at, held, attempt,
    expires_at, concurrency_key, created_at, created_by, max_retries, backoff, timeout,
    schedule_uid, label, occurrence, payload
)
VALUES (?1, 0, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
ON CONFLICT (id) DO NOTHING
