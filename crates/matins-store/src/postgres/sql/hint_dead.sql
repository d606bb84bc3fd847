-- Purpose: the newest dead letters that wait for a person.
-- Index: dead_letter_time; task_pkey.
SELECT t.id, d.failed_at
FROM (SELECT seq, failed_at FROM matins.dead_letter WHERE dismissed_at IS NULL
      ORDER BY failed_at DESC, seq DESC LIMIT $1) AS d
JOIN matins.task AS t ON t.seq = d.seq
