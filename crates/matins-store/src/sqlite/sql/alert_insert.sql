-- Purpose: an alert.
-- Index: -.
INSERT INTO alert (at, read, rule, subject, severity, resolved, facts)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
