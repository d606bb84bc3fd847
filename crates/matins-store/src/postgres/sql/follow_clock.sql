-- Purpose: after the clock was set back, what is not due waits once more.
-- Index: scans of ready and slot, once for each step back.
SELECT matins.follow_clock($1)
