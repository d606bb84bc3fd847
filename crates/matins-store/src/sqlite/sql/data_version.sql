-- Purpose: changes when another connection has written.
-- Index: -.
PRAGMA data_version
