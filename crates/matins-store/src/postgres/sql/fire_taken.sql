-- Purpose: applies plans for marks that were taken in Redis; NULL: not under that generation.
-- Index: schedule_pkey, occurrence_label.
SELECT CASE WHEN matins.under($3) THEN matins.fire($1, $2) END
