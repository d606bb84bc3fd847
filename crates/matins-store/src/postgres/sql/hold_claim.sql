-- Purpose: the regime, before a claim whose tasks are taken in Redis before it is committed.
-- Index: member_pkey.
SELECT * FROM matins.hold_claim($1, $2)
