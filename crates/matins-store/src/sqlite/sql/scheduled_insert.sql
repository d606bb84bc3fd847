-- Purpose: due later.
-- Index: primary key.
INSERT INTO scheduled (run_at, seq, lane, ord, keyed) VALUES (?1, ?2, ?3, ?4, ?5)
