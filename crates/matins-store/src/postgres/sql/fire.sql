-- Purpose: applies plans, each by itself.
-- Index: schedule_pkey, occurrence_label.
SELECT matins.fire($1, $2)
