-- Purpose: who this store is.
-- Index: one row.
SELECT store_id FROM matins.meta
