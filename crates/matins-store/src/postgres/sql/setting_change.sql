-- Purpose: changes switches, with the record of it.
-- Index: setting_pkey.
SELECT matins.change_settings($1, $2, $3, $4, $5, $6)
