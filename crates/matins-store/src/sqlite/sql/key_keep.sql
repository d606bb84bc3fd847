-- Purpose: the ledger takes over what the task's row knew.
-- Index: primary key; writes exec_key_at.
UPDATE exec_key SET at = ?4, result = ?5
WHERE type = ?1 AND key = ?2 AND id = ?3
