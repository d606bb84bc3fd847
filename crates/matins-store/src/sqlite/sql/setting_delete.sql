-- Purpose: a switch is unset.
-- Index: primary key.
DELETE FROM setting WHERE scope = ?1 AND name = ?2
