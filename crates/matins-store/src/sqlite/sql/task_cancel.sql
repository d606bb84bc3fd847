-- Purpose: cancelled while it waited.
-- Index: primary key; writes task_ended.
UPDATE task SET state = 4, held = 0, finished_at = ?2, cancel_reason = ?3
WHERE seq = ?1
