-- Purpose: an entry of the ledger whose time is over.
-- Index: exec_key_at, range.
SELECT 1 FROM exec_key WHERE at IS NOT NULL AND at <= ?1 LIMIT ?2
