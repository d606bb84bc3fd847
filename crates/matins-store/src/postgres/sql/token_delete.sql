-- Purpose: a token is taken back.
-- Index: token_pkey.
DELETE FROM matins.token WHERE name = $1 RETURNING 1
