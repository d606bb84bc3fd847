-- Purpose: one act.
-- Index: none.
INSERT INTO matins.audit (time, who, action, target, reason) VALUES ($1, $2, $3, $4, $5)
