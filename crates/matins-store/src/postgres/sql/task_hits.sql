-- Purpose: numbers of tasks that an index knows: by key or the beginning of it, or of the id.
-- Index: exec_key_pkey by type, dead_letter_key, task_id, history_id.
WITH hit AS (
    SELECT k.id FROM (SELECT DISTINCT type FROM matins.lane) AS l, LATERAL (
        SELECT id FROM matins.exec_key AS k
        WHERE k.type = l.type AND ($1::text IS NOT NULL AND k.key = $1
              OR $2::text IS NOT NULL AND starts_with(k.key, $2))
        LIMIT 200) AS k
    UNION
    SELECT t.id FROM matins.dead_letter AS d JOIN matins.task AS t ON t.seq = d.seq
    WHERE $1::text IS NOT NULL AND d.execution_key = $1
       OR $2::text IS NOT NULL AND starts_with(d.execution_key, $2)
    UNION
    (SELECT id FROM matins.task WHERE id BETWEEN $3 AND $4 LIMIT 200)
    UNION
    (SELECT id FROM matins.history WHERE id BETWEEN $3 AND $4 LIMIT 200)
)
SELECT t.seq FROM hit JOIN matins.task AS t ON t.id = hit.id
UNION
SELECT h.seq FROM hit JOIN matins.history AS h ON h.id = hit.id
