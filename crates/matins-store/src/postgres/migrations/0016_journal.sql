-- What was journalled while the database was away.

-- Entries that have been applied. One may come twice, from a spool and from Redis, and long after.
CREATE TABLE journal_entry (
    id  uuid PRIMARY KEY,
    at  timestamptz NOT NULL                  -- when it was journalled
);
CREATE INDEX journal_entry_at ON journal_entry (at);

-- Takes in a task that was accepted without the database. False: it was there already.
CREATE FUNCTION replay_enqueue(n new_task, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE a record; k text := n.execution_key; t task;
BEGIN
    SELECT * INTO a FROM accept(n, p_at);
    IF a.outcome = 0 THEN RETURN true; END IF;
    IF id_is_stored(n.id) THEN RETURN false; END IF;
    -- Another task has the key, or has got this one's payload: a row of its own says so to whoever
    -- was given the id.
    n.execution_key := NULL;
    PERFORM accept(n, p_at);
    t := lock_task(n.id);
    IF NOT leave(t) THEN
        RAISE EXCEPTION 'task % was taken while it came in', n.id
        USING ERRCODE = 'serialization_failure';
    END IF;
    t.execution_key := k;
    IF a.at IS NOT NULL THEN
        PERFORM deduplicate_left(t, a.result, p_at);
    ELSE
        PERFORM cancel_left(t, 'duplicate_key', p_at);
    END IF;
    RETURN true;
END $$;

-- Entries in their order, each at the time it was journalled. Answers the tasks that came in.
CREATE FUNCTION replay_enqueues(p_entries uuid[], p_tasks new_task[], p_at timestamptz[])
RETURNS SETOF uuid
LANGUAGE plpgsql ROWS 100 SET search_path = matins, pg_temp AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT DISTINCT x.type, x.concurrency_key AS key FROM unnest(p_tasks) AS x
             WHERE x.concurrency_key IS NOT NULL ORDER BY 1, 2 LOOP
        PERFORM tie_key(r.type, r.key);
    END LOOP;
    FOR i IN 1..cardinality(p_entries) LOOP
        INSERT INTO journal_entry VALUES (p_entries[i], p_at[i]) ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        IF replay_enqueue(p_tasks[i], p_at[i]) THEN
            RETURN NEXT p_tasks[i].id;
        END IF;
    END LOOP;
END $$;
