-- Purpose: tasks that were accepted while the database was away, each applied once.
-- Index: journal_entry_pkey, task_id, exec_key_pkey.
SELECT e.id
FROM matins.replay_enqueues(
    $22,
    ARRAY(
        SELECT ROW(u.id, u.client_id, u.pool, u.type, u.payload, u.priority, u.run_at,
                   u.expires_at, u.execution_key, u.on_duplicate, u.concurrency_key,
                   u.tags::text[], u.max_retries, u.backoff, u.timeout_us, u.schedule,
                   u.schedule_uid, u.label, u.occurrence, u.held, u.created_by)::matins.new_task
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                    $18, $19, $20, $21) WITH ORDINALITY
             AS u (id, client_id, pool, type, payload, priority, run_at, expires_at,
                   execution_key, on_duplicate, concurrency_key, tags, max_retries, backoff,
                   timeout_us, schedule, schedule_uid, label, occurrence, held, created_by, nth)
        ORDER BY u.nth
    ),
    $23
) AS e (id)
