-- Purpose: renews claims with leases of their own.
-- Index: running_pkey.
SELECT matins.extend($1, $2, $3, $4)
