-- Purpose: numbers and ids of failed tasks that match, the last accepted first, within a range.
-- Index: dead_letter_pkey, from the end of the range; task_pkey, each.
SELECT t.seq, t.id FROM matins.dead_letter AS d JOIN matins.task AS t ON t.seq = d.seq
WHERE d.seq < $1 AND d.seq >= $2
  AND ($3::integer[] IS NULL OR t.lane = ANY($3))
  AND ($4::text IS NULL OR t.schedule = $4)
  AND ($5::text IS NULL OR t.execution_key = $5)
  AND ($6::text IS NULL OR $6 = ANY(t.tags))
  AND ($7::text IS NULL OR t.lane = ANY($8) OR starts_with(t.execution_key, $7)
       OR starts_with(t.id::text, lower($7))
       OR EXISTS (SELECT 1 FROM unnest(t.tags) AS tag WHERE starts_with(tag, $7)))
ORDER BY d.seq DESC LIMIT $9
