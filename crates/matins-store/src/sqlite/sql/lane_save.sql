-- Purpose: counters of a lane that a transaction touched.
-- Index: primary key.
UPDATE lane
SET ready = ?2, later = ?3, parked = ?4, held = ?5, running = ?6,
    completed = ?7, failed = ?8, cancelled = ?9, dead = ?10
WHERE id = ?1
