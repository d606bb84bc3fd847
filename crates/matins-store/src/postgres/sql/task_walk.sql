-- Purpose: numbers and ids of tasks that match, the last accepted first, within a range.
-- Index: task_pkey, history_seq, each from the end of the range; or task_schedule, history_schedule.
--
-- Each table by itself, so that neither is read further than the page: one order over both would
-- be a sort of all there is.
SELECT x.seq, x.id FROM (
    (SELECT t.seq, t.id FROM matins.task AS t
    WHERE t.seq < $1 AND t.seq >= $2
      AND ($10::integer[] IS NULL OR CASE
            WHEN t.state > 0 THEN t.state
            WHEN EXISTS (SELECT 1 FROM matins.running AS r WHERE r.id = t.id) THEN 1
            ELSE 0 END = ANY($10))
      AND ($3::integer[] IS NULL OR t.lane = ANY($3))
      AND ($4::text IS NULL OR t.schedule = $4)
      AND ($5::text IS NULL OR t.execution_key = $5)
      AND ($6::text IS NULL OR $6 = ANY(t.tags))
      AND ($7::text IS NULL OR t.lane = ANY($8) OR starts_with(t.execution_key, $7)
           OR starts_with(t.id::text, lower($7))
           OR EXISTS (SELECT 1 FROM unnest(t.tags) AS tag WHERE starts_with(tag, $7)))
    ORDER BY t.seq DESC LIMIT $9)
    UNION ALL
    (SELECT h.seq, h.id FROM matins.history AS h
    WHERE h.seq < $1 AND h.seq >= $2
      AND ($10::integer[] IS NULL OR h.state = ANY($10))
      AND ($3::integer[] IS NULL OR h.lane = ANY($3))
      AND ($4::text IS NULL OR h.schedule = $4)
      AND ($5::text IS NULL OR h.execution_key = $5)
      AND ($6::text IS NULL OR $6 = ANY(h.tags))
      AND ($7::text IS NULL OR h.lane = ANY($8) OR starts_with(h.execution_key, $7)
           OR starts_with(h.id::text, lower($7))
           OR EXISTS (SELECT 1 FROM unnest(h.tags) AS tag WHERE starts_with(tag, $7)))
    ORDER BY h.seq DESC LIMIT $9)
) AS x ORDER BY x.seq DESC LIMIT $9
