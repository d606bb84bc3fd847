-- Purpose: dead letters by their kind of error, with the error of the newest.
-- Index: dead_letter_group; task_pkey.
SELECT g.fingerprint, g.n, g.oldest, g.newest, t.error_class, t.error_message FROM (
    SELECT d.fingerprint, count(*) AS n, min(d.failed_at) AS oldest, max(d.failed_at) AS newest,
           (array_agg(d.seq ORDER BY d.failed_at DESC, d.seq DESC))[1] AS seq
    FROM matins.dead_letter AS d
    WHERE d.dismissed_at IS NULL AND d.fingerprint <> ''
      AND ($1::text IS NULL OR d.fingerprint = $1)
      AND ($2::integer[] IS NULL OR d.lane = ANY($2))
      AND ($3::text IS NULL OR d.schedule = $3)
      AND ($4::text IS NULL OR $4 = ANY(d.tags))
      AND ($5::timestamptz IS NULL OR d.failed_at >= $5)
      AND ($6::timestamptz IS NULL OR d.failed_at < $6)
    GROUP BY d.fingerprint
) AS g JOIN matins.task AS t ON t.seq = g.seq
ORDER BY g.n DESC, g.fingerprint COLLATE "C"
