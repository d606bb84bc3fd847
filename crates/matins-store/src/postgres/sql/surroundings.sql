-- Purpose: figures of a pool and a type: what runs of the type, in quarantine, and its rate.
-- Index: scan of running, which is small.
SELECT (SELECT count(*) FROM matins.running AS r JOIN matins.lane AS l ON l.id = r.lane
        WHERE l.type = $1),
       EXISTS (SELECT 1 FROM matins.running AS r JOIN matins.lane AS l ON l.id = r.lane
               WHERE l.quarantine),
       (SELECT spent_until FROM matins.rate WHERE type = $1)
