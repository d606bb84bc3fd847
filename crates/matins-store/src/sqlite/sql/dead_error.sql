-- Purpose: what a dead letter died of.
-- Index: primary key.
SELECT error_class, error_message FROM task WHERE seq = ?1
