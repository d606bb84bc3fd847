-- Purpose: who runs a task.
-- Index: primary key.
SELECT n.text, r.cancel_requested_at IS NOT NULL FROM running AS r JOIN name AS n ON n.id = r.worker
WHERE r.seq = ?1
