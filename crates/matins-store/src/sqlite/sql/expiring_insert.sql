-- Purpose: a pending task that expires.
-- Index: primary key.
INSERT INTO expiring (expires_at, seq) VALUES (?1, ?2)
