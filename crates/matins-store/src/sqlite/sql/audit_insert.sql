-- Purpose: an act, for the audit log.
-- Index: -.
INSERT INTO audit (time, who, action, target, reason) VALUES (?1, ?2, ?3, ?4, ?5)
