-- Purpose: ends runs that completed, and others.
-- Index: running_pkey, task_pkey, exec_key_pkey.
SELECT matins.complete_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15),
    matins.settle(ARRAY(
        SELECT ROW(u.*)::matins.settlement FROM (
            SELECT id, fence, token, attempt, outcome, error_class, error_message, fingerprint,
                   exit_code, http_status, output, output_dropped, output_gap, finished_at, next,
                   run_at, reason, cancel_reason, result, result_dropped, retries, retries_before,
                   losses, interruptions
            FROM unnest($16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
                        $31, $32, $33, $34, $35, $36, $37, $38, $39) WITH ORDINALITY
                 AS x (id, fence, token, attempt, outcome, error_class, error_message,
                       fingerprint, exit_code, http_status, output, output_dropped, output_gap,
                       finished_at, next, run_at, reason, cancel_reason, result, result_dropped,
                       retries, retries_before, losses, interruptions, nth)
            ORDER BY nth) AS u))
