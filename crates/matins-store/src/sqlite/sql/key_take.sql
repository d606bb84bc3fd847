-- Purpose: takes a key, unless a live or completed task has it.
-- Index: primary key.
INSERT INTO exec_key (type, key, id) VALUES (?1, ?2, ?3)
ON CONFLICT (type, key) DO NOTHING
