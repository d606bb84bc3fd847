-- Purpose: the number of the first task that is still there.
-- Index: task_pkey, history_seq, first.
SELECT least((SELECT min(seq) FROM matins.task), (SELECT min(seq) FROM matins.history))
