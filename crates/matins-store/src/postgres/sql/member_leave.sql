-- Purpose: a member goes away.
-- Index: member_pkey.
SELECT matins.member_leave($1)
