-- Purpose: ends runs.
-- Index: running_pkey, task_pkey.
SELECT matins.settle(ARRAY(
    SELECT ROW(u.*)::matins.settlement FROM (
        SELECT id, fence, token, attempt, outcome, error_class, error_message, fingerprint,
               exit_code, http_status, output, output_dropped, output_gap, finished_at, next,
               run_at, reason, cancel_reason, result, result_dropped, retries, retries_before,
               losses, interruptions
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                    $18, $19, $20, $21, $22, $23, $24) WITH ORDINALITY
             AS x (id, fence, token, attempt, outcome, error_class, error_message, fingerprint,
                   exit_code, http_status, output, output_dropped, output_gap, finished_at, next,
                   run_at, reason, cancel_reason, result, result_dropped, retries,
                   retries_before, losses, interruptions, nth)
        ORDER BY nth) AS u
))
