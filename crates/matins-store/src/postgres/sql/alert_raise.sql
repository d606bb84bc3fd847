-- Purpose: alerts, in order.
-- Index: none.
INSERT INTO matins.alert (at, read, rule, subject, severity, resolved, facts)
SELECT at, $7, rule, subject, severity, resolved, facts
FROM unnest($1, $2, $3, $4, $5, $6)
     WITH ORDINALITY AS u (at, rule, subject, severity, resolved, facts, nth) ORDER BY nth
