-- Purpose: what a claim would hand out, to be taken in Redis first.
-- Index: see claim.
SELECT * FROM matins.peek($1, $2, $3, $4, $5, $6, $7, $8)
