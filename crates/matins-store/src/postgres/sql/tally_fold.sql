-- Purpose: the changes so far become one for each lane and place, once there are many.
-- Index: scan of tally, in maintenance.
SELECT matins.fold_tally($1)
