-- Purpose: a token, new or replaced.
-- Index: token_pkey.
INSERT INTO matins.token (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
