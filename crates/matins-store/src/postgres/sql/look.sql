-- Purpose: what a node that waits may have to do, who is gone, and whether the schema still fits.
-- Index: ready_pkey, first of each lane; scheduled_pkey and schedule_due, first; scans of lane,
-- setting, worker, running and the locks, which are small; expiring_pkey, first.
--
-- Pools with tasks in line; when the first of those that are due later is due; when the next
-- schedule is; workers whose session is gone, and when they were last seen (none soon after a start
-- of the database, which every session had to survive); the oldest version that can live with the
-- schema, and the schema's own; whether claims have lapsed (as in `running_lapsed`) and tasks
-- expired; the clock; which regime there is for outages.
SELECT
    (SELECT array_agg(DISTINCT l.pool) FROM matins.lane AS l
     LEFT JOIN unnest($3, $4) AS f (lane, ord) ON f.lane = l.id,
     -- A look-up for each lane, whatever the planner believes of the table.
     LATERAL (SELECT 1 FROM matins.ready AS r
              WHERE r.lane = l.id AND r.ord >= coalesce(f.ord, -9223372036854775808)
              ORDER BY r.ord, r.seq LIMIT 1) AS waits
     WHERE l.pool = ANY($1) AND ($2::text[] IS NULL OR l.type = ANY($2))
       AND NOT EXISTS (SELECT 1 FROM matins.setting AS s
                       WHERE s.scope = 'frozen' OR s.scope = 'pool' AND s.name = l.pool
                         AND (s.value::json ->> 'paused')::boolean)),
    (SELECT run_at FROM matins.scheduled WHERE run_at >= $5 ORDER BY run_at, seq LIMIT 1),
    (SELECT next_due FROM matins.schedule WHERE next_due IS NOT NULL
     ORDER BY next_due, name LIMIT 1),
    g.names, g.seen,
    (SELECT max(compatible_from) FROM matins.migration), (SELECT max(version) FROM matins.migration),
    (SELECT true FROM matins.running AS r LEFT JOIN matins.worker AS w ON w.name = r.worker
     WHERE $7 AND (coalesce(w.retired, false)
                   OR coalesce(r.lease_until, w.lease_until, '-infinity') < $8) LIMIT 1),
    (SELECT true FROM matins.expiring WHERE $7 AND expires_at <= $9
     ORDER BY expires_at, seq LIMIT 1),
    clock_timestamp(), (SELECT generation FROM matins.regime WHERE one)
FROM (
    SELECT array_agg(w.name) AS names, array_agg(w.seen_at) AS seen FROM matins.worker AS w
    WHERE $6 AND w.guarded AND NOT w.retired
      AND pg_postmaster_start_time() < clock_timestamp() - (w.lease_until - w.seen_at)
      AND NOT EXISTS (
        SELECT 1 FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.classid = 1835103846 AND l.objsubid = 2
          AND l.objid::bigint = hashtext(w.name)::bigint & 4294967295
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
) AS g
