-- Purpose: interns a name.
-- Index: -.
INSERT INTO name (text) VALUES (?1)
