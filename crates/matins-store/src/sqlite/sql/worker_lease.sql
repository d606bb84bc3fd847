-- Purpose: until when a worker's claims stand.
-- Index: primary key.
SELECT lease_until FROM worker WHERE name = ?1 AND retired = 0
