-- Functions for any language, inside the caller's own transaction.
--
--   SELECT matins.enqueue('send_invoice', '{"order": 7}', execution_key => 'invoice-7');
--   SELECT matins.complete(task_id => $1, fence => $2, result => '{"sent": true}');
--
-- Grant USAGE on the schema and EXECUTE on these two: they run with their owner's rights and touch
-- nothing but the store.

CREATE FUNCTION new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- U+F8FF stands for something else in what the client reads.
CREATE FUNCTION marked(p_text text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(p_text, U&'\F8FF', U&'\F8FF' || '1')
$$;

CREATE FUNCTION refuse(p_field text, p_expected text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', p_field, p_expected USING ERRCODE = 'invalid_parameter_value';
END $$;

CREATE FUNCTION check_name(p_field text, p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_name IS NULL OR p_name = '' OR octet_length(p_name) > 255 OR p_name ~ '[[:cntrl:]]' THEN
        PERFORM refuse(p_field, 'expected 1 to 255 bytes without control characters');
    END IF;
END $$;

-- Accepts a task when the caller's transaction commits; answers its id, or that of the task that
-- has the `execution_key` already. `on_duplicate`: return, reject (raises unique_violation) or
-- replace, as in the API. Without `pool`, the pool of the type in the servers' files, or `default`.
CREATE FUNCTION enqueue(
    type text, payload json DEFAULT 'null', execution_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, pool text DEFAULT NULL, priority integer DEFAULT 0,
    expires_at timestamptz DEFAULT NULL, max_retries integer DEFAULT NULL,
    timeout interval DEFAULT NULL, concurrency_key text DEFAULT NULL,
    tags text[] DEFAULT NULL, on_duplicate text DEFAULT 'return', id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE n new_task; a record; v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM check_name('type', type);
    IF pool IS NOT NULL THEN PERFORM check_name('pool', pool); END IF;
    IF octet_length(coalesce(payload::text, '')) > 1048576 THEN
        PERFORM refuse('payload', 'expected at most 1048576 bytes');
    END IF;
    IF execution_key = '' OR octet_length(execution_key) > 255 THEN
        PERFORM refuse('execution_key', 'expected 1 to 255 bytes');
    END IF;
    IF concurrency_key = '' OR octet_length(concurrency_key) > 255 THEN
        PERFORM refuse('concurrency_key', 'expected 1 to 255 bytes');
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        PERFORM refuse('priority', 'expected -100 to 100');
    END IF;
    IF max_retries < 0 THEN PERFORM refuse('max_retries', 'expected 0 or more'); END IF;
    IF timeout <= interval '0' THEN PERFORM refuse('timeout', 'expected more than 0'); END IF;
    IF run_at = 'infinity' OR run_at = '-infinity' OR expires_at = 'infinity'
       OR expires_at = '-infinity' THEN
        PERFORM refuse('run_at, expires_at', 'expected finite instants');
    END IF;
    IF expires_at <= greatest(run_at, v_now) THEN
        PERFORM refuse('expires_at', 'expected an instant after run_at and now');
    END IF;
    IF on_duplicate IS NULL OR on_duplicate NOT IN ('return', 'reject', 'replace') THEN
        PERFORM refuse('on_duplicate', 'expected return, reject or replace');
    END IF;
    n.id := coalesce(id, new_id());
    n.client_id := id IS NOT NULL;
    n.type := marked(type);
    n.pool := coalesce(marked(pool),
        (SELECT s.value FROM setting AS s WHERE s.scope = 'route' AND s.name = marked(type)),
        'default');
    n.payload := coalesce(payload::text, 'null');
    n.priority := priority;
    n.run_at := coalesce(run_at, v_now);
    n.expires_at := expires_at;
    n.execution_key := marked(execution_key);
    n.on_duplicate := CASE on_duplicate WHEN 'return' THEN 0 WHEN 'reject' THEN 1 ELSE 2 END;
    n.concurrency_key := coalesce(marked(concurrency_key), key_in(n.type, payload));
    n.tags := (SELECT array_agg(marked(tag)) FROM unnest(tags) AS tag);
    n.max_retries := max_retries;
    n.timeout_us := (extract(epoch FROM timeout) * 1000000)::bigint;
    n.held := false;
    n.created_by := 'sql:' || session_user;
    SELECT * INTO a FROM accept(n, v_now);
    IF a.outcome = 3 THEN
        RAISE EXCEPTION 'execution_key: % is taken by task %', execution_key, a.id
            USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM pg_notify('matins', 'sql');
    RETURN a.id;
END $$;

-- What a type's limit takes its concurrency_key from in the payload: a JSON pointer.
CREATE FUNCTION key_in(p_type text, p_payload json) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT marked(left(p_payload #>> ARRAY(
        SELECT replace(replace(part, '~1', '/'), '~0', '~')
        FROM unnest(string_to_array(substr(s.value::json ->> 'concurrency_key', 2), '/'))
             WITH ORDINALITY AS u (part, nth) ORDER BY nth), 255))
    FROM setting AS s
    WHERE s.scope = 'limit' AND s.name = p_type
      AND s.value::json ->> 'concurrency_key' IS NOT NULL
$$;

-- Completes the run that has this fence when the caller's transaction commits, so that effect and
-- completion commit together; raises if the run has lost its claim.
CREATE FUNCTION complete(task_id uuid, fence bigint, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE r running; t task; s settlement; v_answer smallint[];
BEGIN
    IF octet_length(result::text) > 262144 THEN
        PERFORM refuse('result', 'expected at most 262144 bytes');
    END IF;
    SELECT * INTO r FROM running AS x WHERE x.id = task_id AND x.fence = fence FOR UPDATE;
    IF FOUND THEN
        SELECT * INTO STRICT t FROM task AS x WHERE x.id = task_id;
        s.id := task_id; s.fence := fence; s.token := r.token; s.attempt := t.attempt + 1;
        s.outcome := 'completed'; s.finished_at := clock_timestamp(); s.next := 2;
        s.result := result::text; s.retries := t.retries; s.retries_before := t.retries;
        s.losses := t.losses; s.interruptions := t.interruptions;
        v_answer := settle(ARRAY[s]);
    END IF;
    IF v_answer IS NULL OR v_answer[1] <> 2 THEN
        RAISE EXCEPTION 'task % is fenced: fence % no longer stands', task_id, fence
            USING ERRCODE = 'MT001', HINT = 'roll back: somebody else has the task, or it ended';
    END IF;
    PERFORM pg_notify('matins', 'sql');
END $$;

REVOKE ALL ON FUNCTION enqueue, complete FROM PUBLIC;
