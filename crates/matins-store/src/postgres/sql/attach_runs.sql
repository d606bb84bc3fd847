-- Purpose: runs of the journal go on as ordinary ones.
-- Index: scan of running, which is small.
SELECT matins.attach_runs($1, $2)
