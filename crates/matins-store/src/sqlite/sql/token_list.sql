-- Purpose: tokens by name.
-- Index: scan of token, which is small.
SELECT value FROM token ORDER BY name
