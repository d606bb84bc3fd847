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

-- Ends runs. Answers for each item, in order, the state its task is in now, or 0: the claim no
-- longer stands, and nothing was changed.
CREATE FUNCTION settle(p_items settlement[]) RETURNS smallint[]
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_answers smallint[]; v_runs running[]; v_run running; v_nth integer[]; v_tied bigint[];
    v_plain bigint[]; v_n integer; i integer := 0;
BEGIN
    v_answers := array_fill(0::smallint, ARRAY[coalesce(array_length(p_items, 1), 0)]);
    SELECT array_agg(r.seq) INTO v_tied FROM unnest(p_items) AS s
    JOIN running AS r ON r.id = s.id WHERE r.tied;
    IF v_tied IS NOT NULL THEN PERFORM tie_tasks(v_tied); END IF;
    WITH s AS (
        SELECT DISTINCT ON (u.id, u.fence, u.token) u.id, u.fence, u.token, u.nth
        FROM unnest(p_items) WITH ORDINALITY AS u (id, fence, token, attempt, outcome,
            error_class, error_message, fingerprint, exit_code, http_status, output,
            output_dropped, output_gap, finished_at, next, run_at, reason, cancel_reason, result,
            result_dropped, retries, retries_before, losses, interruptions, nth)
        ORDER BY u.id, u.fence, u.token, u.nth
    ), d AS (
        DELETE FROM running AS r USING s
        WHERE r.id = s.id AND r.fence = s.fence AND r.token = s.token
        RETURNING r, s.nth
    )
    SELECT array_agg(d.r ORDER BY d.nth), array_agg(d.nth::integer ORDER BY d.nth)
    INTO v_runs, v_nth FROM d;
    -- Plain successes, all at once.
    WITH x AS MATERIALIZED (
        SELECT r.seq AS r_seq, r.worker AS r_worker, r.claimed_at, r.asked, s.*
        FROM unnest(v_runs) WITH ORDINALITY AS r (r_id, seq, r_fence, r_token, worker, r_lane,
            claimed_at, lease_until, asked, tied, at)
        JOIN unnest(v_nth) WITH ORDINALITY AS u (nth, at) ON u.at = r.at
        JOIN unnest(p_items) WITH ORDINALITY AS s (id, fence, token, attempt, outcome,
            error_class, error_message, fingerprint, exit_code, http_status, output,
            output_dropped, output_gap, finished_at, next, run_at, reason, cancel_reason, result,
            result_dropped, retries, retries_before, losses, interruptions, nth)
            ON s.nth = u.nth
        WHERE NOT r.tied AND s.next = 2
    ), gone AS (
        DELETE FROM task AS t USING x WHERE t.seq = x.r_seq
        RETURNING t.*, x.nth, x.r_worker, x.claimed_at, x.asked, x.finished_at AS x_at,
            x.retries AS x_retries, x.retries_before, x.losses AS x_losses,
            x.interruptions AS x_interruptions, x.outcome AS x_outcome, x.error_class AS x_class,
            x.error_message AS x_message, x.fingerprint AS x_fingerprint,
            x.exit_code AS x_exit, x.http_status AS x_http, x.output AS x_output,
            x.output_dropped AS x_dropped, x.output_gap AS x_gap, x.result AS x_result,
            x.result_dropped AS x_result_dropped
    ), filed AS (
        INSERT INTO history (seq, id, state, lane, schedule, execution_key, tags, priority,
            run_at, held, attempt, retries, losses, interruptions, replays, expires_at,
            concurrency_key, created_at, created_by, max_retries, backoff, timeout_us,
            schedule_uid, label, occurrence, started_at, finished_at, cancel_requested_at,
            cancel_reason, deduplicated, result_dropped, dismissed, worker, outcome, error_class,
            error_message, fingerprint, exit_code, http_status, output, output_dropped,
            output_gap, result, payload)
        SELECT seq, id, 2, lane, schedule, execution_key, tags, priority, run_at, held,
            attempt + 1, CASE WHEN asked IS NULL THEN x_retries ELSE retries_before END,
            x_losses, x_interruptions, replays, expires_at, concurrency_key, created_at,
            created_by, max_retries, backoff, timeout_us, schedule_uid, label, occurrence,
            claimed_at, x_at, asked, NULL, deduplicated, x_result_dropped, dismissed,
            r_worker, x_outcome, x_class, x_message, x_fingerprint, x_exit, x_http, x_output,
            x_dropped, x_gap, x_result, payload
        FROM gone
    ), counted AS (
        INSERT INTO tally (lane, place, n) SELECT lane, 6, count(*) FROM gone GROUP BY lane
    )
    SELECT array_agg(nth) INTO v_plain FROM gone;
    IF v_plain IS NOT NULL THEN
        FOREACH v_n IN ARRAY v_plain LOOP v_answers[v_n] := 2; END LOOP;
    END IF;
    IF v_runs IS NULL THEN RETURN v_answers; END IF;
    FOREACH v_run IN ARRAY v_runs LOOP
        i := i + 1;
        v_n := v_nth[i];
        IF v_answers[v_n] = 0 THEN
            v_answers[v_n] := settle_run(p_items[v_n], v_run);
        END IF;
    END LOOP;
    RETURN v_answers;
END $$;
