-- Purpose: one switch.
-- Index: setting_pkey.
SELECT value FROM matins.setting WHERE scope = $1 AND name = $2
