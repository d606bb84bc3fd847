-- Purpose: the ledger takes over what the task's row knows.
-- Index: primary key.
UPDATE exec_key SET result = ?4
WHERE type = ?1 AND key = ?2 AND id = ?3 AND at IS NOT NULL
