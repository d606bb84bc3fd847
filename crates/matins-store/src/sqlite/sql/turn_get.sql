-- Purpose: how many tasks of a concurrency_key run, and when it last took turns.
-- Index: primary key.
SELECT running, freed FROM turn WHERE type = ?1 AND key = ?2
