-- Purpose: a token is revoked.
-- Index: primary key.
DELETE FROM token WHERE name = ?1
