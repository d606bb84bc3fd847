-- Purpose: the claim has ended.
-- Index: primary key.
DELETE FROM running WHERE seq = ?1
