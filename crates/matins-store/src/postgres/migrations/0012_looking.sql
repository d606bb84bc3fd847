-- Reading what may have changed a moment ago: a function that a statement calls beside a verb sees
-- what the verb saw, not what the statement saw when it began.

CREATE FUNCTION slot_place(p_turned boolean, p_freed timestamptz, p_priority integer,
                           p_run_at timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    RETURN place_of(p_turned, p_freed, p_priority, p_run_at);
END $$;

CREATE FUNCTION catch_up(p_now timestamptz, p_limit integer) RETURNS integer
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    RETURN promote(p_now, p_limit, '-infinity');
END $$;

-- A task, wherever it is. A function, because its plan is made once for a session, and because it
-- sees what this transaction has written, wherever it is called from.
CREATE FUNCTION find_task(p_id uuid) RETURNS SETOF task_full
LANGUAGE plpgsql ROWS 1 SET search_path = matins, pg_temp AS $$
BEGIN
    RETURN QUERY
        SELECT r.fence, r.token, r.worker, r.claimed_at, r.cancel_requested_at, l.pool, l.type,
               t.*
        FROM task AS t JOIN lane AS l ON l.id = t.lane LEFT JOIN running AS r ON r.id = t.id
        WHERE t.id = p_id;
    IF FOUND THEN RETURN; END IF;
    RETURN QUERY
        SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::timestamptz, NULL::timestamptz,
               l.pool, l.type, h.*
        FROM history AS h JOIN lane AS l ON l.id = h.lane WHERE h.id = p_id;
END $$;

CREATE FUNCTION find_tasks(p_ids uuid[]) RETURNS SETOF task_full
LANGUAGE plpgsql ROWS 100 SET search_path = matins, pg_temp AS $$
DECLARE v_id uuid;
BEGIN
    FOREACH v_id IN ARRAY p_ids LOOP
        RETURN QUERY SELECT * FROM find_task(v_id);
    END LOOP;
END $$;

-- Attempts of a task: those that did not end it, then the one that did.
CREATE FUNCTION find_attempts(p_id uuid) RETURNS SETOF attempt
LANGUAGE plpgsql ROWS 5 SET search_path = matins, pg_temp AS $$
DECLARE t task;
BEGIN
    SELECT * INTO t FROM task WHERE id = p_id;
    IF NOT FOUND THEN SELECT * INTO t FROM history WHERE id = p_id; END IF;
    RETURN QUERY SELECT * FROM attempt WHERE seq = t.seq ORDER BY number;
    IF t.outcome IS NOT NULL THEN
        RETURN QUERY SELECT t.seq, t.attempt, t.worker, t.started_at, t.finished_at, t.outcome,
            t.error_class, t.error_message, t.fingerprint, t.exit_code, t.http_status, t.output,
            t.output_dropped, t.output_gap;
    END IF;
END $$;
