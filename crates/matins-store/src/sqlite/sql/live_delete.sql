-- Purpose: it has ended or is released.
-- Index: primary key.
DELETE FROM schedule_live WHERE schedule_uid = ?1 AND held = ?2 AND seq = ?3
