-- Purpose: tells others that there is something to look at; nothing is lost with it.
-- Index: none.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('matins', $1)
