-- Purpose: tasks in line that are not due, after the clock was set back.
-- Index: scans of ready and slot, once per step of the clock.
SELECT r.seq FROM ready AS r JOIN task AS t ON t.seq = r.seq WHERE t.run_at > ?1
UNION ALL
SELECT seq FROM slot WHERE stage > 0 AND run_at > ?1
