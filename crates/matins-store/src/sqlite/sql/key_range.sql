-- Purpose: holders of keys that begin alike.
-- Index: primary key, range.
SELECT id FROM exec_key WHERE type = ?1 AND key >= ?2 AND key < ?3 LIMIT ?4
