-- Purpose: pruned with their task.
-- Index: primary key.
DELETE FROM attempt WHERE seq = ?1
