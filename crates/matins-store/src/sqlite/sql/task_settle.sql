-- Purpose: how a run ended, when it ended the task.
-- Index: primary key; writes task_ended.
UPDATE task
SET state = ?2, attempt = attempt + 1, retries = ?3, losses = ?4, interruptions = ?5,
    started_at = ?6, finished_at = ?7, cancel_requested_at = ?8, cancel_reason = ?9,
    result_dropped = ?10, worker = ?11, outcome = ?12, error_class = ?13, error_message = ?14,
    fingerprint = ?15, exit_code = ?16, http_status = ?17, output = ?18, output_dropped = ?19,
    output_gap = ?20, result = ?21
WHERE seq = ?1
