-- Purpose: a schedule written from the revision that is stored; its occurrences are not.
-- Index: name.
UPDATE schedule
SET uid = ?2, rev = ?3, next_due = ?4, state = ?5, decided = ?6,
    unrecorded = CASE uid WHEN ?2 THEN unrecorded - decided ELSE 0 END + ?6
WHERE name = ?1 AND rev = ?7
