-- Purpose: pool and type of a lane.
-- Index: primary key.
SELECT pool, type FROM lane WHERE id = ?1
