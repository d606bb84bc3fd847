-- Purpose: named tasks that were taken in Redis.
-- Index: see the function.
SELECT c.fence, NULL::bigint AS token, NULL::text AS run_worker, c.claimed_at,
       c.cancel_requested_at AS run_cancel_requested_at, c.pool, c.type, c.seq,
       c.id, 0::smallint AS state, c.lane, c.schedule, c.execution_key, c.tags, c.priority,
       c.run_at, false AS held, c.attempt, c.retries, c.losses, c.interruptions, c.replays,
       c.expires_at, c.concurrency_key, c.created_at, c.created_by, c.max_retries, c.backoff,
       c.timeout_us, c.schedule_uid, c.label, c.occurrence, NULL::timestamptz AS started_at,
       NULL::timestamptz AS finished_at, NULL::timestamptz AS cancel_requested_at,
       NULL::text AS cancel_reason, false AS deduplicated, NULL::bigint AS result_dropped,
       NULL::text AS dismissed, NULL::text AS worker, NULL::text AS outcome, c.error_class,
       c.error_message, c.fingerprint, NULL::integer AS exit_code, NULL::integer AS http_status,
       NULL::bytea AS output, NULL::bigint AS output_dropped, NULL::bigint AS output_gap,
       NULL::text AS result, c.payload, c.next_at, c.walked, c.floor_lanes, c.floor_ords
FROM matins.claim_taken($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS c
