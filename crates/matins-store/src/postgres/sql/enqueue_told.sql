-- Purpose: tasks with new ids and without keys or schedules, in one go.
-- Index: writes those of task, ready, scheduled.
SELECT matins.enqueue_told($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
