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

CREATE FUNCTION refuse(p_field text, p_message text, p_hint text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_hint IS NULL THEN
        RAISE EXCEPTION '%: %', p_field, p_message USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RAISE EXCEPTION '%: %', p_field, p_message
        USING ERRCODE = 'invalid_parameter_value', HINT = p_hint;
END $$;

-- A limit of the servers' files, `limits.NAME`.
CREATE FUNCTION limit_of(p_name text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT s.value::bigint FROM setting AS s
                     WHERE s.scope = 'size' AND s.name = p_name),
        CASE p_name WHEN 'payload_bytes' THEN 1048576 WHEN 'result_bytes' THEN 262144
                    WHEN 'key_bytes' THEN 255 END)
$$;

CREATE FUNCTION check_size(p_field text, p_text text, p_limit text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_most bigint := limit_of(p_limit);
BEGIN
    IF octet_length(p_text) > v_most THEN
        PERFORM refuse(p_field, format('is %s bytes long; the limit %s is %s',
            octet_length(p_text), p_limit, v_most),
            format('limits.%s in matins.yaml of the servers', p_limit));
    END IF;
END $$;

CREATE FUNCTION check_name(p_field text, p_name text, p_most integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_name IS NULL OR p_name = '' THEN PERFORM refuse(p_field, 'must not be empty'); END IF;
    IF octet_length(p_name) > p_most THEN
        PERFORM refuse(p_field, format('is %s bytes long; at most %s', octet_length(p_name),
            p_most));
    END IF;
    IF p_name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM refuse(p_field, 'must not contain control characters');
    END IF;
    IF p_name ~ '^\s|\s$' THEN
        PERFORM refuse(p_field, 'must not begin or end with white space');
    END IF;
END $$;

CREATE FUNCTION check_key(p_field text, p_key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_key = '' THEN
        PERFORM refuse(p_field, 'must not be empty', 'leave it out to have no key');
    END IF;
    PERFORM check_size(p_field, p_key, 'key_bytes');
END $$;

CREATE FUNCTION check_tags(p_tags text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_nth integer := 0; v_tag text;
BEGIN
    IF cardinality(p_tags) > 32 THEN
        PERFORM refuse('tags', format('at most 32, got %s', cardinality(p_tags)));
    END IF;
    FOREACH v_tag IN ARRAY coalesce(p_tags, '{}') LOOP
        PERFORM check_name(format('tags[%s]', v_nth), v_tag, 100);
        v_nth := v_nth + 1;
    END LOOP;
END $$;

-- What SQL can say and no server could read again.
CREATE FUNCTION check_instant(p_field text, p_at timestamptz, p_hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_at IN ('infinity', '-infinity') THEN
        PERFORM refuse(p_field, 'expected a finite instant', p_hint);
    END IF;
    IF p_at NOT BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 00:00:00Z' THEN
        PERFORM refuse(p_field, format('expected a year from 1 to 9999, got %s', p_at));
    END IF;
END $$;

-- Accepts a task when the caller's transaction commits; answers its id, or that of the task that
-- has the `execution_key` already. `on_duplicate`: return, reject (raises unique_violation) or
-- replace, as in the API. Without `pool`, the pool of the type in the servers' files, or `default`.
-- An error is `FIELD: what is wrong with it`, with SQLSTATE 22023.
CREATE FUNCTION enqueue(
    type text, payload json DEFAULT 'null', execution_key text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, pool text DEFAULT NULL, priority integer DEFAULT 0,
    expires_at timestamptz DEFAULT NULL, max_retries integer DEFAULT NULL,
    timeout interval DEFAULT NULL, concurrency_key text DEFAULT NULL,
    tags text[] DEFAULT NULL, on_duplicate text DEFAULT 'return', id uuid DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = matins, pg_temp AS $$
#variable_conflict use_variable
DECLARE n new_task; a record; v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM check_name('type', type, 200);
    IF pool IS NOT NULL THEN PERFORM check_name('pool', pool, 200); END IF;
    PERFORM check_size('payload', payload::text, 'payload_bytes');
    PERFORM check_key('execution_key', execution_key);
    PERFORM check_key('concurrency_key', concurrency_key);
    PERFORM check_tags(tags);
    IF id IS NOT NULL AND execution_key IS NOT NULL THEN
        PERFORM refuse('id', 'cannot be combined with execution_key',
            'the key already makes a repeat harmless');
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        PERFORM refuse('priority', format('expected -100 to 100, got %s',
            coalesce(priority::text, 'NULL')));
    END IF;
    IF max_retries NOT BETWEEN 0 AND 1000000 THEN
        PERFORM refuse('max_retries', format('expected 0 to 1000000, got %s', max_retries));
    END IF;
    IF timeout <= interval '0' THEN PERFORM refuse('timeout', 'expected more than 0'); END IF;
    IF timeout > interval '100 years' THEN
        PERFORM refuse('timeout', 'expected at most 100 years', 'leave it out for the usual limit');
    END IF;
    PERFORM check_instant('run_at', run_at, NULL);
    PERFORM check_instant('expires_at', expires_at, 'leave it out to never expire');
    IF expires_at <= coalesce(run_at, v_now) THEN
        PERFORM refuse('expires_at', 'must lie after run_at');
    END IF;
    IF on_duplicate IS NULL OR on_duplicate NOT IN ('return', 'reject', 'replace') THEN
        PERFORM refuse('on_duplicate', format('expected return, reject or replace, got %s',
            coalesce(on_duplicate, 'NULL')));
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
    n.concurrency_key := marked(coalesce(concurrency_key, key_in(n.type, payload)));
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

-- What a type's limit takes its concurrency_key from in the payload, by a JSON pointer: text as it
-- is, numbers and booleans as JSON writes them, nothing for anything else. The field is named where
-- a text cannot be one in SQL.
CREATE FUNCTION key_in(p_type text, p_payload json) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE v_pointer text; v_found json; v_key text;
BEGIN
    SELECT s.value::json ->> 'concurrency_key' INTO v_pointer FROM setting AS s
    WHERE s.scope = 'limit' AND s.name = p_type;
    IF v_pointer IS NULL THEN RETURN NULL; END IF;
    BEGIN
        v_found := p_payload #> ARRAY(
            SELECT replace(replace(part, '~1', '/'), '~0', '~')
            FROM unnest(string_to_array(substr(v_pointer, 2), '/')) WITH ORDINALITY AS u (part, nth)
            ORDER BY nth);
        IF json_typeof(v_found) NOT IN ('string', 'number', 'boolean') THEN RETURN NULL; END IF;
        v_key := nullif(v_found #>> '{}', '');
    EXCEPTION WHEN untranslatable_character THEN
        PERFORM refuse('payload', 'holds U+0000, beside which no key can be found in SQL',
                       'give concurrency_key itself');
    END;
    PERFORM check_size('payload' || v_pointer, v_key, 'key_bytes');
    RETURN v_key;
END $$;

-- Completes the run that has this fence when the caller's transaction commits, so that effect and
-- completion commit together; raises MT001 if the run has lost its claim. A result above
-- `limits.result_bytes` is dropped, as everywhere, and its size recorded.
CREATE FUNCTION complete(task_id uuid, fence bigint, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = matins, pg_temp AS $$
#variable_conflict use_variable
DECLARE r running; t task; s settlement; v_answer smallint[];
BEGIN
    IF task_id IS NULL THEN PERFORM refuse('task_id', 'must not be NULL'); END IF;
    IF fence IS NULL THEN PERFORM refuse('fence', 'must not be NULL'); END IF;
    -- Without a lock: `settle` takes them in its order and looks again.
    SELECT * INTO r FROM running AS x WHERE x.id = task_id AND x.fence = fence;
    IF FOUND THEN
        SELECT * INTO t FROM task AS x WHERE x.seq = r.seq;
        s.id := task_id; s.fence := fence; s.token := r.token; s.attempt := t.attempt + 1;
        s.outcome := 'completed'; s.finished_at := clock_timestamp(); s.next := 2;
        s.result := result::text; s.retries := t.retries; s.retries_before := t.retries;
        s.losses := t.losses; s.interruptions := t.interruptions;
        IF octet_length(s.result) > limit_of('result_bytes') THEN
            RAISE WARNING 'result: is % bytes long; the limit result_bytes is %; it is dropped',
                octet_length(s.result), limit_of('result_bytes');
            s.result_dropped := octet_length(s.result); s.result := NULL;
        END IF;
        v_answer := settle(ARRAY[s]);
    END IF;
    IF v_answer IS NULL OR v_answer[1] <> 2 THEN
        RAISE EXCEPTION 'task_id: the claim of % with fence % no longer stands', task_id, fence
            USING ERRCODE = 'MT001', HINT = 'roll back: somebody else has the task, or it ended';
    END IF;
    PERFORM pg_notify('matins', 'sql');
END $$;

REVOKE ALL ON FUNCTION enqueue, complete FROM PUBLIC;
