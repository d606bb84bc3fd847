-- Purpose: numbers and ids of tasks that match, the last accepted first, within a range.
-- Index: task_pkey, history_seq, merged from the end of the range.
SELECT x.seq, x.id FROM (
    SELECT seq, id, state, lane, schedule, execution_key, tags FROM matins.task
    WHERE seq < $1 AND seq >= $2
    UNION ALL
    SELECT seq, id, state, lane, schedule, execution_key, tags FROM matins.history
    WHERE seq < $1 AND seq >= $2
) AS x
WHERE ($3::integer[] IS NULL OR CASE
        WHEN x.state > 0 THEN x.state
        WHEN EXISTS (SELECT 1 FROM matins.running AS r WHERE r.id = x.id) THEN 1
        ELSE 0 END = ANY($3))
  AND ($4::integer[] IS NULL OR x.lane = ANY($4))
  AND ($5::text IS NULL OR x.schedule = $5)
  AND ($6::text IS NULL OR x.execution_key = $6)
  AND ($7::text IS NULL OR $7 = ANY(x.tags))
  AND ($8::text IS NULL OR x.lane = ANY($9) OR starts_with(x.execution_key, $8)
       OR starts_with(x.id::text, lower($8))
       OR EXISTS (SELECT 1 FROM unnest(x.tags) AS tag WHERE starts_with(tag, $8)))
ORDER BY x.seq DESC LIMIT $10
