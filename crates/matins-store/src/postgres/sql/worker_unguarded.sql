-- Purpose: workers whose session is gone, and when they were last seen; none soon after a start of
-- the database, which every session had to survive.
-- Index: scans of worker and of the locks, which are small.
SELECT w.name, w.seen_at FROM matins.worker AS w
WHERE w.guarded AND NOT w.retired
  AND pg_postmaster_start_time() < clock_timestamp() - (w.lease_until - w.seen_at)
  AND NOT EXISTS (
    SELECT 1 FROM pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.classid = 1835103846 AND l.objsubid = 2
      AND l.objid::bigint = hashtext(w.name)::bigint & 4294967295
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
