-- Purpose: states of the rate limits.
-- Index: scan of rate, which is small.
SELECT type, spent_until FROM rate
