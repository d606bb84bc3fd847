-- Purpose: a schedule written together with the occurrences it decided.
-- Index: name.
UPDATE schedule SET rev = ?2, next_due = ?3, state = ?4, decided = ?5 WHERE name = ?1
