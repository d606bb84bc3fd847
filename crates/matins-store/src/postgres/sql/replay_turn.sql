-- Purpose: entries of the journal come in through one node at a time, until its transaction ends:
-- others bring the same ones, in another order.
-- Index: none.
SELECT pg_advisory_xact_lock(1835103846, 2)
