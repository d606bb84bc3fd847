-- Purpose: put aside by a person.
-- Index: primary key.
UPDATE task SET dismissed = ?2 WHERE seq = ?1
