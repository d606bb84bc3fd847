-- Purpose: in line.
-- Index: primary key.
INSERT INTO ready (lane, ord, seq) VALUES (?1, ?2, ?3)
