-- Purpose: state of a type's rate limit.
-- Index: primary key.
SELECT r.spent_until FROM rate AS r JOIN name AS n ON n.id = r.type WHERE n.text = ?1
