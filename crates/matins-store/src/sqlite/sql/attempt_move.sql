-- Purpose: the last attempt of a task that is open again.
-- Index: primary keys.
INSERT INTO attempt (
    seq, number, worker, started_at, finished_at, outcome, error_class, error_message,
    fingerprint, exit_code, http_status, output, output_dropped, output_gap
)
SELECT seq, attempt, worker, started_at, finished_at, outcome, error_class, error_message,
       fingerprint, exit_code, http_status, output, output_dropped, output_gap
FROM task WHERE seq = ?1 AND outcome IS NOT NULL
