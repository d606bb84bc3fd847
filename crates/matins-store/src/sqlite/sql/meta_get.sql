-- Purpose: who this store is.
-- Index: primary key.
SELECT store_id FROM meta WHERE one = 1
