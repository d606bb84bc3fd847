-- Ending runs.

-- How a run ended and where its task goes. `next` as states: 1 pending again at `run_at`,
-- 2 completed, 3 failed, 4 cancelled (`reason`). With `cancel_reason`, a task whose end was asked
-- for is cancelled for that reason instead.
CREATE TYPE settlement AS (
    id uuid, fence bigint, token bigint, attempt integer, outcome text, error_class text,
    error_message text, fingerprint text, exit_code integer, http_status integer, output bytea,
    output_dropped bigint, output_gap bigint, finished_at timestamptz, next smallint,
    run_at timestamptz, reason text, cancel_reason text, result text, result_dropped bigint,
    retries integer, retries_before integer, losses integer, interruptions integer
);

CREATE FUNCTION file_attempt(s settlement, r running) RETURNS void LANGUAGE sql AS $$
    INSERT INTO attempt (seq, number, worker, started_at, finished_at, outcome, error_class,
        error_message, fingerprint, exit_code, http_status, output, output_dropped, output_gap)
    VALUES (r.seq, s.attempt, r.worker, r.claimed_at, s.finished_at, s.outcome, s.error_class,
        s.error_message, s.fingerprint, s.exit_code, s.http_status, s.output, s.output_dropped,
        s.output_gap)
$$;

-- Ends one run whose row in `running` is gone. Answers the state the task is in now.
CREATE FUNCTION settle_run(s settlement, r running) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    t task; v_next integer := s.next; v_reason text := s.reason; v_retries integer := s.retries;
    v_type text;
BEGIN
    SELECT * INTO STRICT t FROM task WHERE seq = r.seq FOR UPDATE;
    IF r.cancel_requested_at IS NOT NULL THEN
        v_retries := s.retries_before;
        IF s.cancel_reason IS NOT NULL THEN
            v_next := 4; v_reason := s.cancel_reason;
        END IF;
    END IF;
    v_type := type_of(r.lane);
    t.attempt := t.attempt + 1; t.retries := v_retries; t.losses := s.losses;
    t.interruptions := s.interruptions; t.started_at := r.claimed_at;
    t.cancel_requested_at := r.cancel_requested_at; t.error_class := s.error_class;
    t.error_message := s.error_message; t.fingerprint := s.fingerprint;
    IF v_next = 1 THEN
        PERFORM file_attempt(s, r);
        UPDATE task SET attempt = t.attempt, lane = sibling_lane(r.lane, s.losses >= 2),
            run_at = s.run_at, retries = t.retries, losses = t.losses,
            interruptions = t.interruptions, started_at = t.started_at,
            cancel_requested_at = t.cancel_requested_at, error_class = t.error_class,
            error_message = t.error_message, fingerprint = t.fingerprint
        WHERE seq = r.seq RETURNING * INTO t;
        IF t.concurrency_key IS NOT NULL THEN
            PERFORM slot_freed(v_type, t.concurrency_key, s.finished_at);
        END IF;
        PERFORM enter(t, s.finished_at);
        RETURN 1;
    END IF;
    t.state := v_next; t.finished_at := s.finished_at; t.cancel_reason := v_reason;
    t.worker := r.worker; t.outcome := s.outcome; t.exit_code := s.exit_code;
    t.http_status := s.http_status; t.output := s.output; t.output_dropped := s.output_dropped;
    t.output_gap := s.output_gap;
    IF v_next = 2 THEN t.result := s.result; t.result_dropped := s.result_dropped; END IF;
    IF v_next = 3 THEN
        DELETE FROM task WHERE seq = t.seq;
        INSERT INTO task VALUES (t.*);
        INSERT INTO dead_letter (seq, failed_at, lane, schedule, fingerprint, tags, execution_key)
        VALUES (t.seq, t.finished_at, t.lane, t.schedule, coalesce(t.fingerprint, ''), t.tags,
                t.execution_key);
        PERFORM count_in(r.lane, 9, 1);
    ELSE
        PERFORM file_away(t);
    END IF;
    PERFORM count_in(r.lane, CASE v_next WHEN 2 THEN 6 WHEN 3 THEN 7 ELSE 8 END, 1);
    IF t.concurrency_key IS NOT NULL THEN
        PERFORM slot_freed(v_type, t.concurrency_key, s.finished_at);
    END IF;
    PERFORM let_go(t, v_next, s.finished_at);
    RETURN v_next;
END $$;

-- Ends runs of tasks that completed and lead on to nothing (`tied`), all at once. Answers which of
-- them, by number; what is not among these was not touched, and `settle` says why.
--
-- Planned for few: `running` is often empty when it is analyzed, and whoever believes that it has
-- one row and is given a thousand finds it cheaper to walk all of it for each of them than to look
-- them up. Of a list cut by LIMIT the planner expects little, so it looks each one up, whatever it
-- believes of the tables.
CREATE FUNCTION complete_plain(
    p_ids uuid[], p_fences bigint[], p_tokens bigint[], p_exit_codes integer[],
    p_http integer[], p_outputs bytea[], p_outputs_dropped bigint[], p_output_gaps bigint[],
    p_finished_at timestamptz[], p_results text[], p_results_dropped bigint[],
    p_retries integer[], p_retries_before integer[], p_losses integer[],
    p_interruptions integer[]
) RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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

-- Ends runs. Answers for each item, in order, the state its task is in now, or 0: the claim no
-- longer stands, and nothing was changed.
CREATE FUNCTION settle(p_items settlement[]) RETURNS smallint[]
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_answers smallint[] := '{}'; v_tied bigint[]; s settlement; r running;
BEGIN
    SELECT array_agg(x.seq) INTO v_tied FROM unnest(p_items) AS i
    JOIN running AS x ON x.id = i.id WHERE x.tied;
    IF v_tied IS NOT NULL THEN PERFORM tie_tasks(v_tied); END IF;
    FOREACH s IN ARRAY p_items LOOP
        DELETE FROM running AS x
        WHERE x.id = s.id AND x.fence = s.fence AND x.token = s.token RETURNING * INTO r;
        v_answers := v_answers || CASE WHEN FOUND THEN settle_run(s, r) ELSE 0 END::smallint;
    END LOOP;
    RETURN v_answers;
END $$;

-- Ends runs that completed: those that lead on to nothing all at once, the others one by one.
-- Answers as `settle`.
CREATE FUNCTION complete_all(
    p_ids uuid[], p_fences bigint[], p_tokens bigint[], p_exit_codes integer[],
    p_http integer[], p_outputs bytea[], p_outputs_dropped bigint[], p_output_gaps bigint[],
    p_finished_at timestamptz[], p_results text[], p_results_dropped bigint[],
    p_retries integer[], p_retries_before integer[], p_losses integer[],
    p_interruptions integer[]
) RETURNS smallint[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
