-- Purpose: attempts of a task: those that did not end it, then the one that did.
-- Index: task_id, else history_id; attempt_pkey.
SELECT number, worker, started_at, finished_at, outcome, error_class, error_message, fingerprint,
       exit_code, http_status, output, output_dropped, output_gap
FROM matins.find_attempts($1)
