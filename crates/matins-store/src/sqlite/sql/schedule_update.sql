-- Purpose: a schedule decided anew from the revision that is stored.
-- Index: primary key.
UPDATE schedule SET uid = ?2, rev = ?3, next_due = ?4, state = ?5
WHERE name = ?1 AND rev = ?6
