-- Purpose: alerts are read, and the state of the one who tells is kept.
-- Index: desk_pkey, alert_pkey.
SELECT matins.file_alerts($1, $2, $3)
