-- Batches that are one statement each: what a batch did is all there or not at all, and its answer
-- says of each what the caller would have to ask for otherwise.

-- As `enqueue_plain`; answers the order of acceptance of each.
CREATE FUNCTION enqueue_told(
    p_ids uuid[], p_pools text[], p_types text[], p_payloads text[], p_priorities smallint[],
    p_run_at timestamptz[], p_expires_at timestamptz[], p_tags text[], p_max_retries bigint[],
    p_backoff text[], p_timeout_us bigint[], p_created_by text[], p_now timestamptz
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
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
                                   max_retries, backoff, timeout_us, created_by, nth)
        JOIN lane AS l ON l.pool = u.pool AND l.type = u.type AND NOT l.quarantine
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

-- For programs that do not ask for the order.
CREATE OR REPLACE FUNCTION enqueue_plain(
    p_ids uuid[], p_pools text[], p_types text[], p_payloads text[], p_priorities smallint[],
    p_run_at timestamptz[], p_expires_at timestamptz[], p_tags text[], p_max_retries bigint[],
    p_backoff text[], p_timeout_us bigint[], p_created_by text[], p_now timestamptz
) RETURNS void LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
BEGIN
    PERFORM enqueue_told(p_ids, p_pools, p_types, p_payloads, p_priorities, p_run_at,
        p_expires_at, p_tags, p_max_retries, p_backoff, p_timeout_us, p_created_by, p_now);
END $$;

-- As before, planned for few: `running` is often empty when it is analyzed, and whoever believes that
-- it has one row and is given a thousand finds it cheaper to walk all of it for each of them than to
-- look them up. Of a list cut by LIMIT the planner expects little, so it looks each one up, whatever
-- it believes of the tables.
CREATE OR REPLACE FUNCTION complete_plain(
    p_ids uuid[], p_fences bigint[], p_tokens bigint[], p_exit_codes integer[],
    p_http integer[], p_outputs bytea[], p_outputs_dropped bigint[], p_output_gaps bigint[],
    p_finished_at timestamptz[], p_results text[], p_results_dropped bigint[],
    p_retries integer[], p_retries_before integer[], p_losses integer[],
    p_interruptions integer[]
) RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_done integer[];
BEGIN
    WITH given AS MATERIALIZED (
        SELECT s.*, r.at AS place
        FROM (SELECT * FROM unnest(p_ids, p_fences, p_tokens, p_exit_codes, p_http, p_outputs,
                    p_outputs_dropped, p_output_gaps, p_finished_at, p_results,
                    p_results_dropped, p_retries, p_retries_before, p_losses, p_interruptions)
             WITH ORDINALITY AS u (id, fence, token, exit_code, http_status, output,
                 output_dropped, output_gap, at, result, dropped, retries, before, losses,
                 interruptions, nth) LIMIT cardinality(p_ids)) AS s,
             LATERAL (SELECT ctid AS at FROM running WHERE id = s.id LIMIT 1) AS r
    ), ended AS (
        -- Somebody who writes to the row meanwhile moves it: then `settle` finds it.
        DELETE FROM running AS r USING given AS s
        WHERE r.ctid = s.place AND r.id = s.id AND r.fence = s.fence AND r.token = s.token
          AND NOT r.tied
        RETURNING r.seq, r.worker, r.claimed_at, r.cancel_requested_at AS asked, s.exit_code,
            s.http_status, s.output, s.output_dropped, s.output_gap, s.at, s.result, s.dropped,
            CASE WHEN r.cancel_requested_at IS NULL THEN s.retries ELSE s.before END AS retries,
            s.losses, s.interruptions, s.nth
    ), gone AS (
        DELETE FROM task AS t USING (
            SELECT e.*, x.place FROM ended AS e, LATERAL (
                SELECT ctid AS place FROM task WHERE seq = e.seq LIMIT 1) AS x) AS e
        WHERE t.ctid = e.place AND t.seq = e.seq
        RETURNING t.seq, t.id, t.lane, t.execution_key, t.tags, t.priority, t.run_at, t.attempt,
            e.retries, e.losses, e.interruptions, t.replays, t.expires_at, t.created_at,
            t.created_by, t.max_retries, t.backoff, t.timeout_us, e.claimed_at, e.at, e.asked,
            e.dropped, e.worker, e.exit_code, e.http_status, e.output, e.output_dropped,
            e.output_gap, e.result, t.payload, e.nth
    ), filed AS (
        INSERT INTO history (seq, id, state, lane, execution_key, tags, priority, run_at, held,
            attempt, retries, losses, interruptions, replays, expires_at, created_at, created_by,
            max_retries, backoff, timeout_us, started_at, finished_at, cancel_requested_at,
            deduplicated, result_dropped, worker, outcome, exit_code, http_status, output,
            output_dropped, output_gap, result, payload)
        SELECT seq, id, 2, lane, execution_key, tags, priority, run_at, false, attempt + 1,
            retries, losses, interruptions, replays, expires_at, created_at, created_by,
            max_retries, backoff, timeout_us, claimed_at, at, asked, false, dropped, worker,
            'completed', exit_code, http_status, output, output_dropped, output_gap, result,
            payload
        FROM gone
    ), keyed AS (
        SELECT e.at AS ctid, g.at, g.result
        FROM gone AS g, LATERAL (
            SELECT k.ctid AS at FROM exec_key AS k
            WHERE k.type = (SELECT type FROM lane WHERE id = g.lane)
              AND k.key = g.execution_key AND k.id = g.id LIMIT 1) AS e
        WHERE g.execution_key IS NOT NULL
    ), ledger AS (
        UPDATE exec_key AS k SET at = e.at, result = e.result FROM keyed AS e
        WHERE k.ctid = e.ctid
    ), counted AS (
        INSERT INTO tally (lane, place, n) SELECT lane, 6, count(*) FROM gone GROUP BY lane
    )
    SELECT array_agg(nth) INTO v_done FROM gone;
    RETURN v_done;
END $$;

-- Ends runs that completed: those that lead on to nothing all at once, the others one by one.
-- Answers as `settle`.
CREATE FUNCTION complete_all(
    p_ids uuid[], p_fences bigint[], p_tokens bigint[], p_exit_codes integer[],
    p_http integer[], p_outputs bytea[], p_outputs_dropped bigint[], p_output_gaps bigint[],
    p_finished_at timestamptz[], p_results text[], p_results_dropped bigint[],
    p_retries integer[], p_retries_before integer[], p_losses integer[],
    p_interruptions integer[]
) RETURNS smallint[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE
    v_done integer[] := complete_plain(p_ids, p_fences, p_tokens, p_exit_codes, p_http, p_outputs,
        p_outputs_dropped, p_output_gaps, p_finished_at, p_results, p_results_dropped, p_retries,
        p_retries_before, p_losses, p_interruptions);
    v_answers smallint[] := array_fill(2::smallint, ARRAY[cardinality(p_ids)]);
    v_left integer[]; v_rest settlement[] := '{}'; v_said smallint[]; s settlement;
BEGIN
    IF cardinality(v_done) = cardinality(p_ids) THEN RETURN v_answers; END IF;
    v_left := ARRAY(SELECT generate_subscripts(p_ids, 1) EXCEPT SELECT unnest(v_done) ORDER BY 1);
    FOR n IN 1..cardinality(v_left) LOOP
        s.id := p_ids[v_left[n]]; s.fence := p_fences[v_left[n]]; s.token := p_tokens[v_left[n]];
        s.outcome := 'completed'; s.next := 2; s.finished_at := p_finished_at[v_left[n]];
        s.exit_code := p_exit_codes[v_left[n]]; s.http_status := p_http[v_left[n]];
        s.output := p_outputs[v_left[n]]; s.output_dropped := p_outputs_dropped[v_left[n]];
        s.output_gap := p_output_gaps[v_left[n]]; s.result := p_results[v_left[n]];
        s.result_dropped := p_results_dropped[v_left[n]]; s.retries := p_retries[v_left[n]];
        s.retries_before := p_retries_before[v_left[n]]; s.losses := p_losses[v_left[n]];
        s.interruptions := p_interruptions[v_left[n]];
        v_rest[n] := s;
    END LOOP;
    v_said := settle(v_rest);
    FOR n IN 1..cardinality(v_left) LOOP v_answers[v_left[n]] := v_said[n]; END LOOP;
    RETURN v_answers;
END $$;

-- Starts named tasks that stand in line and that nothing has to be asked about, in the order of the
-- line, up to one that may not start: one that has expired, or whose key was completed.
CREATE FUNCTION start_named(
    p_seqs bigint[], p_lanes integer[], p_max integer, p_worker text, p_token bigint,
    p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed LANGUAGE plpgsql ROWS 50 AS $$
BEGIN
    RETURN QUERY
    WITH head AS MATERIALIZED (
        SELECT r.* FROM unnest(p_seqs) AS u (seq),
            LATERAL (SELECT lane, run_at, priority FROM task WHERE seq = u.seq LIMIT 1) AS t,
            LATERAL (
                SELECT x.ctid AS at, x.ord, x.seq, x.needs FROM ready AS x
                WHERE x.lane = t.lane AND x.ord = order_key(t.run_at, t.priority)
                  AND x.seq = u.seq AND x.needs < 2
                LIMIT 1 FOR UPDATE SKIP LOCKED) AS r
        WHERE t.lane = ANY(p_lanes)
    ), line AS MATERIALIZED (
        SELECT nextval('fence_seq') AS fence, o.*
        FROM (SELECT * FROM head ORDER BY ord, seq LIMIT p_max) AS o
    ), found AS MATERIALIZED (
        SELECT n.fence, n.at, n.ord, n.needs, l.pool, l.type, t.*,
               n.needs > 0 AND coalesce(t.expires_at <= p_now OR (
                   SELECT k.id <> t.id AND k.at IS NOT NULL FROM exec_key AS k
                   WHERE k.type = l.type AND k.key = t.execution_key), false) AS ends
        FROM line AS n, LATERAL (SELECT * FROM task WHERE seq = n.seq LIMIT 1) AS t,
             LATERAL (SELECT pool, type FROM lane WHERE id = t.lane LIMIT 1) AS l
    ), started AS MATERIALIZED (
        SELECT * FROM found
        WHERE fence < coalesce((SELECT min(fence) FROM found WHERE ends), 9223372036854775807)
    ), gone AS (
        DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT at FROM started))
    ), kept AS (
        DELETE FROM expiring WHERE ctid = ANY(ARRAY(
            SELECT e.at FROM started AS s, LATERAL (
                SELECT x.ctid AS at FROM expiring AS x
                WHERE x.expires_at = s.expires_at AND x.seq = s.seq LIMIT 1) AS e
            WHERE s.expires_at IS NOT NULL))
    ), runs AS (
        INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                             cancel_requested_at, tied)
        SELECT id, seq, fence, p_token, p_worker, lane, p_now, p_lease, cancel_requested_at,
               is_tied(concurrency_key, schedule_uid)
        FROM started
    ), counted AS (
        INSERT INTO tally (lane, place, n) SELECT lane, 1, -count(*) FROM started GROUP BY lane
    )
    SELECT s.fence, p_now, s.cancel_requested_at, s.pool, s.type, s.seq, s.id, s.lane,
           s.schedule, s.execution_key, s.tags, s.priority, s.run_at, s.attempt, s.retries,
           s.losses, s.interruptions, s.replays, s.expires_at, s.concurrency_key, s.created_at,
           s.created_by, s.max_retries, s.backoff, s.timeout_us, s.schedule_uid, s.label,
           s.occurrence, s.error_class, s.error_message, s.fingerprint, s.payload,
           NULL::timestamptz, NULL::bigint, NULL::integer[], NULL::bigint[]
    FROM started AS s ORDER BY s.fence;
END $$;

-- The named tasks, if they are due and nothing else forbids them; wherever they stand in line.
-- Those that nothing has to be asked about are started all at once, the others one by one.
CREATE OR REPLACE FUNCTION claim_named(
    p_worker text, p_pool text, p_types text[], p_ids uuid[], p_max integer, p_token bigint,
    p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed
LANGUAGE plpgsql ROWS 10 SET search_path = matins, pg_temp SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_served integer[]; v_all allowance[]; v_seqs bigint[] := '{}'; v_next timestamptz; w task;
    a allowance; e record; v_again boolean; v_type text; v_due bigint[]; v_seq bigint; u turn;
    v_ids uuid[]; v_tied boolean; v_got integer := 0;
BEGIN
    IF p_max <= 0 OR NOT may_claim(p_worker, p_lease, p_now) THEN RETURN; END IF;
    v_served := lanes_served(p_pool, p_types);
    SELECT array_agg(t.seq), bool_or(t.concurrency_key IS NOT NULL) INTO v_due, v_tied
    FROM (SELECT DISTINCT id FROM unnest(p_ids) AS u (id)) AS i,
         LATERAL (SELECT seq, concurrency_key FROM task WHERE id = i.id LIMIT 1) AS t;
    v_all := allowances(v_served, p_now);
    PERFORM tie_tasks(v_due);
    SELECT min(x.run_at) INTO v_next FROM task AS x
    WHERE x.seq = ANY(v_due) AND x.state = 0 AND NOT x.held AND x.lane = ANY(v_served)
      AND x.run_at > p_now AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.id = x.id);
    FOR w IN
        DELETE FROM scheduled AS s USING task AS x
        WHERE x.seq = ANY(v_due) AND x.lane = ANY(v_served) AND x.run_at <= p_now
          AND s.run_at = x.run_at AND s.seq = x.seq
        RETURNING x.*
    LOOP
        PERFORM count_in(w.lane, 2, -1);
        PERFORM wait_for(w, p_now, true);
    END LOOP;
    IF v_all IS NULL AND NOT v_tied THEN
        RETURN QUERY SELECT * FROM start_named(v_due, v_served, p_max, p_worker, p_token, p_lease,
                                               p_now);
        GET DIAGNOSTICS v_got = ROW_COUNT;
    END IF;
    -- Whatever is left is looked at one by one.
    v_again := v_got < least(p_max, cardinality(v_due));
    WHILE v_again LOOP
        v_again := false;
        FOR v_seq IN
            SELECT x.seq FROM task AS x
            JOIN lane AS l ON l.id = x.lane
            LEFT JOIN slot AS s ON s.type = l.type AND s.key = x.concurrency_key
                AND s.lane = x.lane AND s.seq = x.seq
            LEFT JOIN turn AS u ON u.type = l.type AND u.key = x.concurrency_key
            WHERE x.seq = ANY(v_due) AND x.state = 0 AND NOT x.held
              AND x.lane = ANY(v_served) AND x.run_at <= p_now
              AND NOT x.seq = ANY(v_seqs)
              AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.id = x.id)
            ORDER BY CASE WHEN s.stage = 0 THEN s.ord
                          ELSE place_of(s.stage = 1, u.freed, x.priority, x.run_at) END, x.seq
        LOOP
            EXIT WHEN v_got + cardinality(v_seqs) >= p_max;
            SELECT * INTO w FROM task AS x WHERE x.seq = v_seq FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            v_type := type_of(w.lane);
            SELECT * INTO a FROM unnest(v_all) AS x WHERE x.lane = w.lane;
            IF FOUND THEN
                CONTINUE WHEN a.room <= 0;
                IF a.tokens <= 0 THEN
                    v_next := least(v_next, rate_opens(a, p_now));
                    CONTINUE;
                END IF;
            END IF;
            IF w.concurrency_key IS NOT NULL THEN
                SELECT * INTO u FROM turn AS y
                WHERE y.type = v_type AND y.key = w.concurrency_key;
                CONTINUE WHEN per_key_of(v_type) - coalesce(u.running, 0) <= 0;
            END IF;
            CONTINUE WHEN NOT leave(w);
            e := ends_unrun(w, p_now);
            IF e.why > 0 THEN
                PERFORM end_unrun(w, e.why, e.kept, p_now);
                v_again := true;
                EXIT;
            END IF;
            IF w.concurrency_key IS NOT NULL THEN
                PERFORM add_turn(v_type, w.concurrency_key, 1, NULL);
                PERFORM refit(v_type, w.concurrency_key, per_key_of(v_type));
            END IF;
            v_seqs := v_seqs || w.seq;
            v_all := spend(v_all, w.lane, p_now);
        END LOOP;
    END LOOP;
    IF v_seqs <> '{}' THEN
        PERFORM save_rates(v_all);
        v_ids := start(v_seqs, p_worker, p_token, p_lease, p_now);
        RETURN QUERY SELECT * FROM claims_of(v_ids);
    END IF;
    RETURN NEXT last_word(v_next, 0, NULL, NULL);
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

-- As before; instants and times that cannot be kept are refused by the name of their field.
CREATE OR REPLACE FUNCTION enqueue(
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

-- As before, with the name of the field where a text cannot be one in SQL.
CREATE OR REPLACE FUNCTION key_in(p_type text, p_payload json) RETURNS text LANGUAGE plpgsql STABLE AS $$
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
