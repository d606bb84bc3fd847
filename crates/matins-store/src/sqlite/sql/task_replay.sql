-- Purpose: a new round of a failed task; its last attempt has been moved to attempt.
-- Index: primary key; writes task_ended.
UPDATE task
SET state = 0, lane = ?2, run_at = ?3, payload = coalesce(?4, payload), expires_at = ?5,
    retries = 0, losses = 0, interruptions = 0, replays = replays + 1, finished_at = NULL,
    error_class = NULL, error_message = NULL, fingerprint = NULL, dismissed = NULL,
    worker = NULL, outcome = NULL, exit_code = NULL, http_status = NULL, output = NULL,
    output_dropped = NULL, output_gap = NULL
WHERE seq = ?1
