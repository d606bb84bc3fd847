-- Purpose: cancels pending tasks that have expired.
-- Index: expiring_pkey.
SELECT matins.expire($1, $2)
