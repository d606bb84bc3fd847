-- Purpose: removes a schedule whose mark was taken in Redis; NULL: not under that generation.
-- Index: schedule_pkey.
SELECT CASE WHEN matins.under($5) THEN matins.remove_schedule($1, $2, $3, $4) END
