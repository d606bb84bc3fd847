-- What happens to tasks, as functions: one round trip and one transaction for each verb.
--
-- Locks. Rows of `running`, `ready` and `scheduled` are the arbiters of who moves a task: whoever
-- deletes the row has it, and who finds it gone looks again. Beyond rows there are ties, advisory
-- locks until the end of the transaction, taken in this order and sorted within each:
--
--   1 the quarantine slot   2 a limited type (both by claims alone)
--   3 a schedule's tasks (held, released)   4 a concurrency_key's tasks (parked, in line)
--
-- and only then rows of `task`. What still meets crosswise is a deadlock that PostgreSQL ends
-- and the client repeats.
--
-- Functions that clients call set `search_path`; the others are called by those alone.

-- ------------------------------------------------------------------ words

CREATE TYPE new_task AS (
    id uuid, client_id boolean, pool text, type text, payload text, priority smallint,
    run_at timestamptz, expires_at timestamptz, execution_key text, on_duplicate smallint,
    concurrency_key text, tags text[], max_retries bigint, backoff text, timeout_us bigint,
    schedule text, schedule_uid uuid, label text, occurrence timestamptz, held boolean,
    created_by text
);

-- Microseconds since 1970. By way of an interval, whose parts depend on no time zone: what is not
-- immutable through and through is not inlined.
CREATE FUNCTION micros(p_at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM p_at - timestamptz 'epoch') * 1000000)::bigint $$;

-- `run_at − priority × 60 s`
CREATE FUNCTION order_key(p_run_at timestamptz, p_priority integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM p_run_at - timestamptz 'epoch') * 1000000)::bigint
        - p_priority::bigint * 60000000 $$;

CREATE FUNCTION needs_of(p_execution_key text, p_expires_at timestamptz, p_concurrency_key text)
RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT ((p_execution_key IS NOT NULL OR p_expires_at IS NOT NULL)::integer
         + 2 * (p_concurrency_key IS NOT NULL)::integer)::smallint $$;

CREATE FUNCTION count_in(p_lane integer, p_place integer, p_n bigint) RETURNS void
LANGUAGE sql AS
$$ INSERT INTO tally (lane, place, n) VALUES (p_lane, p_place, p_n) $$;

CREATE FUNCTION lane_of(p_pool text, p_type text, p_quarantine boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE v_lane integer;
BEGIN
    FOR attempt IN 1..2 LOOP
        SELECT id INTO v_lane FROM lane
        WHERE pool = p_pool AND type = p_type AND quarantine = p_quarantine;
        IF FOUND THEN RETURN v_lane; END IF;
        INSERT INTO lane (pool, type, quarantine) VALUES (p_pool, p_type, p_quarantine)
        ON CONFLICT DO NOTHING;
    END LOOP;
    SELECT id INTO STRICT v_lane FROM lane
    WHERE pool = p_pool AND type = p_type AND quarantine = p_quarantine;
    RETURN v_lane;
END $$;

CREATE FUNCTION sibling_lane(p_lane integer, p_quarantine boolean) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE l lane;
BEGIN
    SELECT * INTO STRICT l FROM lane WHERE id = p_lane;
    IF l.quarantine = p_quarantine THEN RETURN p_lane; END IF;
    RETURN lane_of(l.pool, l.type, p_quarantine);
END $$;

CREATE FUNCTION type_of(p_lane integer) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT type FROM lane WHERE id = p_lane $$;

-- ------------------------------------------------------------------ ties

CREATE FUNCTION tie_schedule(p_uid uuid) RETURNS void LANGUAGE sql AS
$$ SELECT pg_advisory_xact_lock(1835103841, hashtext(p_uid::text)) $$;

CREATE FUNCTION tie_key(p_type text, p_key text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_advisory_xact_lock(1835103842, hashtext(p_type || chr(1) || p_key)) $$;

CREATE FUNCTION tie_quarantine() RETURNS void LANGUAGE sql AS
$$ SELECT pg_advisory_xact_lock(1835103843, 0) $$;

CREATE FUNCTION tie_type(p_type text) RETURNS void LANGUAGE sql AS
$$ SELECT pg_advisory_xact_lock(1835103844, hashtext(p_type)) $$;

-- The ties of some tasks, in order.
CREATE FUNCTION tie_tasks(p_seqs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT DISTINCT schedule_uid AS uid FROM task
             WHERE seq = ANY(p_seqs) AND schedule_uid IS NOT NULL ORDER BY 1 LOOP
        PERFORM tie_schedule(r.uid);
    END LOOP;
    FOR r IN SELECT DISTINCT l.type, t.concurrency_key AS key FROM task AS t
             JOIN lane AS l ON l.id = t.lane
             WHERE t.seq = ANY(p_seqs) AND t.concurrency_key IS NOT NULL ORDER BY 1, 2 LOOP
        PERFORM tie_key(r.type, r.key);
    END LOOP;
END $$;

-- The row of an open or failed task, locked after its ties; NULL when it is not in `task`.
CREATE FUNCTION lock_task(p_id uuid) RETURNS task LANGUAGE plpgsql AS $$
DECLARE t task;
BEGIN
    SELECT * INTO t FROM task WHERE id = p_id;
    IF NOT FOUND THEN RETURN NULL; END IF;
    IF t.schedule_uid IS NOT NULL OR t.concurrency_key IS NOT NULL THEN
        PERFORM tie_tasks(ARRAY[t.seq]);
    END IF;
    SELECT * INTO t FROM task WHERE id = p_id FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN t;
END $$;
