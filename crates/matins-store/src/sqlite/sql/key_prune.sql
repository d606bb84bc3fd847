-- Purpose: entries of the ledger whose time is over and whose tasks were pruned.
-- Index: exec_key_at, range.
DELETE FROM exec_key
WHERE (type, key) IN (
    SELECT type, key FROM exec_key WHERE at IS NOT NULL AND at <= ?1 ORDER BY at LIMIT ?2
)
