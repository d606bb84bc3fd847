-- Purpose: fence of the claim made last.
-- Index: primary key.
SELECT fence FROM meta WHERE one = 1
