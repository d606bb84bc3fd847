-- Purpose: an attempt that did not end its task.
-- Index: primary key.
INSERT INTO attempt (
    seq, number, worker, started_at, finished_at, outcome, error_class, error_message,
    fingerprint, exit_code, http_status, output, output_dropped, output_gap
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
