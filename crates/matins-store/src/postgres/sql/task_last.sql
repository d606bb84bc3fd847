-- Purpose: the number of the task accepted last that is still there.
-- Index: task_pkey, history_seq, last.
SELECT greatest((SELECT max(seq) FROM matins.task), (SELECT max(seq) FROM matins.history)) + 1
