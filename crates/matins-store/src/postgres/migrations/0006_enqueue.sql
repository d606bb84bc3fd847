-- Taking tasks in. How batches are told apart (plain ones, and each by itself) is `enqueue.rs`.

CREATE FUNCTION id_is_stored(p_id uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM task WHERE id = p_id)
        OR EXISTS (SELECT 1 FROM history WHERE id = p_id);
END $$;

-- Puts payload and times of a newer request in the place of a pending holder's. False: the
-- holder does not wait any more.
CREATE FUNCTION replace_waiting(p_id uuid, n new_task, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE t task := lock_task(p_id);
BEGIN
    IF t.id IS NULL OR t.state <> 0 OR EXISTS (SELECT 1 FROM running WHERE id = p_id)
       OR NOT leave(t) THEN
        RETURN false;
    END IF;
    UPDATE task SET payload = n.payload, concurrency_key = n.concurrency_key,
        run_at = n.run_at, expires_at = n.expires_at
    WHERE seq = t.seq RETURNING * INTO t;
    PERFORM enter(t, p_now);
    RETURN true;
END $$;

-- Outcomes: 0 created, 1 existing, 2 replaced, 3 rejected. `id` is that of the task that has the
-- id or key; when it completed, its key says when and with what (`at`, `result`).
CREATE FUNCTION accept(n new_task, p_now timestamptz,
                       OUT outcome integer, OUT id uuid, OUT at timestamptz, OUT result text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE k exec_key; t task; v_running boolean;
BEGIN
    id := n.id;
    IF (n.client_id OR n.execution_key IS NOT NULL) AND id_is_stored(n.id) THEN
        outcome := 1;
        RETURN;
    END IF;
    IF n.schedule_uid IS NOT NULL THEN PERFORM tie_schedule(n.schedule_uid); END IF;
    IF n.execution_key IS NOT NULL THEN
        LOOP
            INSERT INTO exec_key (type, key, id) VALUES (n.type, n.execution_key, n.id)
            ON CONFLICT (type, key) DO NOTHING;
            EXIT WHEN FOUND;
            SELECT * INTO k FROM exec_key AS e WHERE e.type = n.type AND e.key = n.execution_key;
            CONTINUE WHEN NOT FOUND;
            id := k.id; at := k.at; result := k.result;
            v_running := k.at IS NULL AND EXISTS (SELECT 1 FROM running AS r WHERE r.id = k.id);
            IF n.on_duplicate = 0 THEN outcome := 1; RETURN; END IF;
            IF n.on_duplicate = 1 OR k.at IS NOT NULL OR v_running THEN
                outcome := 3; RETURN;
            END IF;
            IF replace_waiting(k.id, n, p_now) THEN outcome := 2; RETURN; END IF;
            -- It has been claimed or ended just now: its key says what holds now.
        END LOOP;
    END IF;
    t.seq := nextval('task_seq');
    INSERT INTO task (seq, id, lane, schedule, execution_key, tags, priority, run_at, held,
        expires_at, concurrency_key, created_at, created_by, max_retries, backoff, timeout_us,
        schedule_uid, label, occurrence, payload)
    VALUES (t.seq, n.id, lane_of(n.pool, n.type, false), n.schedule, n.execution_key, n.tags,
        n.priority, n.run_at, n.held, n.expires_at, n.concurrency_key, p_now, n.created_by,
        n.max_retries, n.backoff, n.timeout_us, n.schedule_uid, n.label, n.occurrence, n.payload)
    ON CONFLICT (id) DO NOTHING RETURNING * INTO t;
    -- One with this id may have ended between the look and the insert.
    IF NOT FOUND OR (n.client_id AND EXISTS (SELECT 1 FROM history AS h WHERE h.id = n.id)) THEN
        DELETE FROM task AS d WHERE d.seq = t.seq;
        DELETE FROM exec_key AS e
        WHERE e.type = n.type AND e.key = n.execution_key AND e.id = n.id;
        outcome := 1;
        RETURN;
    END IF;
    IF t.schedule_uid IS NOT NULL THEN
        INSERT INTO schedule_live VALUES (t.schedule_uid, t.held, t.seq);
    END IF;
    PERFORM enter(t, p_now);
    IF t.schedule_uid IS NOT NULL THEN PERFORM release_held(t.schedule_uid, p_now); END IF;
    outcome := 0;
END $$;

-- A batch, in order, each as if those before it had been stored already.
CREATE FUNCTION enqueue_each(p_tasks new_task[], p_now timestamptz)
RETURNS TABLE (outcome integer, id uuid, at timestamptz, result text)
LANGUAGE plpgsql ROWS 100 SET search_path = matins, pg_temp AS $$
DECLARE n new_task; r record;
BEGIN
    FOR r IN SELECT DISTINCT x.schedule_uid AS uid FROM unnest(p_tasks) AS x
             WHERE x.schedule_uid IS NOT NULL ORDER BY 1 LOOP
        PERFORM tie_schedule(r.uid);
    END LOOP;
    FOR r IN SELECT DISTINCT x.type, x.concurrency_key AS key FROM unnest(p_tasks) AS x
             WHERE x.concurrency_key IS NOT NULL ORDER BY 1, 2 LOOP
        PERFORM tie_key(r.type, r.key);
    END LOOP;
    FOREACH n IN ARRAY p_tasks LOOP
        RETURN QUERY SELECT * FROM accept(n, p_now);
    END LOOP;
END $$;

-- A batch of tasks that nothing stands in the way of: new ids, no keys, no schedule. Answers the
-- order of acceptance of each.
CREATE FUNCTION enqueue_told(
    p_ids uuid[], p_pools text[], p_types text[], p_payloads text[], p_priorities smallint[],
    p_run_at timestamptz[], p_expires_at timestamptz[], p_tags text[], p_max_retries bigint[],
    p_backoff text[], p_timeout_us bigint[], p_created_by text[], p_now timestamptz
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_seqs bigint[];
BEGIN
    PERFORM lane_of(x.pool, x.type, false)
    FROM (SELECT DISTINCT pool, type FROM unnest(p_pools, p_types) AS u (pool, type)) AS x
    ORDER BY x.pool, x.type;
    WITH n AS MATERIALIZED (
        SELECT nextval('task_seq') AS seq, o.* FROM (
        SELECT l.id AS lane, u.*, order_key(u.run_at, u.priority) AS ord
        FROM unnest(p_ids, p_pools, p_types, p_payloads, p_priorities, p_run_at, p_expires_at,
                    p_tags, p_max_retries, p_backoff, p_timeout_us, p_created_by)
             WITH ORDINALITY AS u (id, pool, type, payload, priority, run_at, expires_at, tags,
                                   max_retries, backoff, timeout_us, created_by, nth),
             LATERAL (SELECT id FROM lane
                      WHERE pool = u.pool AND type = u.type AND NOT quarantine LIMIT 1) AS l
        ORDER BY u.nth OFFSET 0) AS o
    ), t AS (
        INSERT INTO task (seq, id, lane, tags, priority, run_at, held, expires_at, created_at,
                          created_by, max_retries, backoff, timeout_us, payload)
        SELECT seq, id, lane, tags::text[], priority, run_at, false, expires_at, p_now,
               created_by, max_retries, backoff, timeout_us, payload
        FROM n
    ), r AS (
        INSERT INTO ready (lane, ord, seq, needs)
        SELECT lane, ord, seq, (expires_at IS NOT NULL)::integer FROM n WHERE run_at <= p_now
    ), s AS (
        INSERT INTO scheduled (run_at, seq, lane, ord, needs)
        SELECT run_at, seq, lane, ord, (expires_at IS NOT NULL)::integer FROM n
        WHERE run_at > p_now
    ), e AS (
        INSERT INTO expiring SELECT expires_at, seq FROM n WHERE expires_at IS NOT NULL
    ), c AS (
        INSERT INTO tally (lane, place, n)
        SELECT lane, CASE WHEN run_at <= p_now THEN 1 ELSE 2 END, count(*) FROM n GROUP BY 1, 2
    )
    SELECT array_agg(seq ORDER BY nth) INTO v_seqs FROM n;
    RETURN v_seqs;
END $$;
