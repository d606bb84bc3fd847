-- Purpose: attempts of a task: those that did not end it, then the one that did.
-- Index: task_id, history_id, attempt_pkey.
WITH t AS (
    SELECT seq, attempt, worker, started_at, finished_at, outcome, error_class, error_message,
           fingerprint, exit_code, http_status, output, output_dropped, output_gap
    FROM matins.task WHERE id = $1
    UNION ALL
    SELECT seq, attempt, worker, started_at, finished_at, outcome, error_class, error_message,
           fingerprint, exit_code, http_status, output, output_dropped, output_gap
    FROM matins.history WHERE id = $1
)
SELECT a.number, a.worker, a.started_at, a.finished_at, a.outcome, a.error_class,
       a.error_message, a.fingerprint, a.exit_code, a.http_status, a.output, a.output_dropped,
       a.output_gap
FROM t JOIN matins.attempt AS a ON a.seq = t.seq
UNION ALL
SELECT t.attempt, t.worker, t.started_at, t.finished_at, t.outcome, t.error_class,
       t.error_message, t.fingerprint, t.exit_code, t.http_status, t.output, t.output_dropped,
       t.output_gap
FROM t WHERE t.outcome IS NOT NULL
ORDER BY 1
