-- Purpose: numbers and ids of running tasks that match, the last accepted first, within a range.
-- Index: task_pkey, each; running has as many rows as run.
SELECT t.seq, t.id FROM matins.running AS r JOIN matins.task AS t ON t.seq = r.seq
WHERE r.seq < $1 AND r.seq >= $2
  AND ($3::integer[] IS NULL OR t.lane = ANY($3))
  AND ($4::text IS NULL OR t.schedule = $4)
  AND ($5::text IS NULL OR t.execution_key = $5)
  AND ($6::text IS NULL OR $6 = ANY(t.tags))
  AND ($7::text IS NULL OR t.lane = ANY($8) OR starts_with(t.execution_key, $7)
       OR starts_with(t.id::text, lower($7))
       OR EXISTS (SELECT 1 FROM unnest(t.tags) AS tag WHERE starts_with(tag, $7)))
ORDER BY r.seq DESC LIMIT $9
