-- Purpose: all lanes with their counters, by id; there are few.
-- Index: scan of lane, by design.
SELECT id, pool, type, quarantine,
       ready, later, parked, held, running, completed, failed, cancelled, dead
FROM lane ORDER BY id
