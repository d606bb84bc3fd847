-- Purpose: attempts that did not end their task, by number.
-- Index: primary key.
SELECT number, worker, started_at, finished_at, outcome, error_class, error_message,
       fingerprint, exit_code, http_status, output, output_dropped, output_gap
FROM attempt WHERE seq = ?1 ORDER BY number
