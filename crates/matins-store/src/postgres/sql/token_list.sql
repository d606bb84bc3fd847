-- Purpose: tokens by name.
-- Index: scan of token, which is small.
SELECT value FROM matins.token ORDER BY name
