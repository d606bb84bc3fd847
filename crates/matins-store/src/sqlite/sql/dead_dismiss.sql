-- Purpose: put aside by a person.
-- Index: primary key.
UPDATE dead_letter SET dismissed_at = ?2 WHERE seq = ?1
