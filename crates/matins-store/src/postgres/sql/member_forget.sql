-- Purpose: a person says that a node is dead.
-- Index: scan of member, which is small.
SELECT matins.member_forget($1)
