-- Purpose: the attempt that ended its task.
-- Index: primary key.
SELECT attempt, worker, started_at, finished_at, outcome, error_class, error_message,
       fingerprint, exit_code, http_status, output, output_dropped, output_gap
FROM task WHERE seq = ?1 AND outcome IS NOT NULL
