-- Purpose: forgets entries of the journal that nobody can bring any more.
-- Index: journal_entry_at.
DELETE FROM matins.journal_entry WHERE id IN (
    SELECT id FROM matins.journal_entry WHERE at < $1 ORDER BY at LIMIT $2
)
