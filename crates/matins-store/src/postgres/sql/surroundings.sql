-- Purpose: figures of a pool and a type: what runs of the type, in quarantine, and its rate; and the
-- member that keeps everybody from claiming, because it may work without the database.
-- Index: scans of running and member, which are small.
SELECT (SELECT count(*) FROM matins.running AS r JOIN matins.lane AS l ON l.id = r.lane
        WHERE l.type = $1),
       EXISTS (SELECT 1 FROM matins.running AS r JOIN matins.lane AS l ON l.id = r.lane
               WHERE l.quarantine),
       (SELECT spent_until FROM matins.rate WHERE type = $1), w.node, w.outage_until
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT m.node, m.outage_until FROM matins.member AS m JOIN matins.regime AS g
        ON g.generation <> m.acknowledged
    WHERE m.outage_until > clock_timestamp() ORDER BY m.outage_until DESC LIMIT 1) AS w ON true
