-- Purpose: the head of a lane has been handed out.
-- Index: primary key, range.
DELETE FROM ready WHERE lane = ?1 AND (ord, seq) <= (?2, ?3)
