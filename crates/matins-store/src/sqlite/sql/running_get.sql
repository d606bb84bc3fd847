-- Purpose: a claim that may stand.
-- Index: task_id, running by primary key.
SELECT r.seq, r.fence, r.token, r.worker, r.lane, r.claimed_at, r.cancel_requested_at, r.tied
FROM task AS t JOIN running AS r ON r.seq = t.seq WHERE t.id = ?1
