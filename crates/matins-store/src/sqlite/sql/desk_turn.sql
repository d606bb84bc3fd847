-- Purpose: a turn begins or is prolonged; the state stays.
-- Index: primary key.
INSERT INTO desk (one, teller, until) VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET teller = excluded.teller, until = excluded.until
