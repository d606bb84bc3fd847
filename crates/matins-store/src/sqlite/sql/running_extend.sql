-- Purpose: a claim's own lease.
-- Index: primary key.
UPDATE running SET lease_until = ?2
WHERE seq = ?1 AND lease_until IS NOT NULL
