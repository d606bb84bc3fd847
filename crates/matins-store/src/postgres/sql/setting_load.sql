-- Purpose: switches of the store.
-- Index: scan of setting, which is small.
SELECT scope, name, value FROM matins.setting
