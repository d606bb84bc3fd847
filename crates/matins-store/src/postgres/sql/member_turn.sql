-- Purpose: what a member has acknowledged and sees, and how things stand.
-- Index: member_pkey, regime_pkey.
SELECT * FROM matins.member_turn($1, $2, $3, $4, $5, $6, $7)
