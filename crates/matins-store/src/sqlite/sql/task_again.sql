-- Purpose: a run ended, the task did not.
-- Index: primary key.
UPDATE task
SET attempt = attempt + 1, lane = ?2, run_at = ?3, retries = ?4, losses = ?5, interruptions = ?6,
    started_at = ?7, cancel_requested_at = ?8, error_class = ?9, error_message = ?10,
    fingerprint = ?11
WHERE seq = ?1
