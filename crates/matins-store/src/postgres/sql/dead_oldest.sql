-- Purpose: dead letters behind a position, the first failed first.
-- Index: dead_letter_time or dead_letter_group, range.
SELECT d.seq, d.failed_at, t.id FROM matins.dead_letter AS d
JOIN matins.task AS t ON t.seq = d.seq
WHERE d.dismissed_at IS NULL AND (d.failed_at, d.seq) > ($1, $2)
  AND ($3::text IS NULL OR d.fingerprint = $3)
  AND ($4::integer[] IS NULL OR d.lane = ANY($4))
  AND ($5::text IS NULL OR d.schedule = $5)
  AND ($6::text IS NULL OR $6 = ANY(d.tags))
  AND ($7::timestamptz IS NULL OR d.failed_at >= $7)
  AND ($8::timestamptz IS NULL OR d.failed_at < $8)
ORDER BY d.failed_at ASC, d.seq ASC LIMIT $9
