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

CREATE FUNCTION micros(p_at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM p_at) * 1000000)::bigint $$;

-- `run_at − priority × 60 s`
CREATE FUNCTION order_key(p_run_at timestamptz, p_priority integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM p_run_at) * 1000000)::bigint - p_priority::bigint * 60000000 $$;

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

-- ------------------------------------------------------------------ concurrency keys
--
-- Of the tasks in line with the same type and key, only so many stand in `ready` as may run; the
-- others are parked.
--
--   in line ──▶ [ stage 0: in ready ] ──claim──▶ running ──▶ stops: one place is free
--                  ▲        │ another takes its place                      │
--            first │        ▼                                              ▼
--               [ stage 2: parked, own order ] ──▶ [ stage 1: parked, waits for its turn ]
--
-- When a slot of a saturated key becomes free at an instant F, whatever of the key is in line
-- lines up anew: its place becomes order_key(F, priority), ties by order of acceptance. Holds
-- after every step, in each lane, with room = per_key − running: stage 0 has at most `room` rows,
-- and exactly that many while anything is parked; nothing parked stands before stage 0.

CREATE FUNCTION per_key_of(p_type text) RETURNS integer LANGUAGE sql STABLE AS
$$ SELECT coalesce((SELECT (value::json ->> 'per_key')::integer FROM setting
                    WHERE scope = 'limit' AND name = p_type), 1) $$;

-- Place in line of a task that was in line when its key last took turns, or not.
CREATE FUNCTION place_of(p_turned boolean, p_freed timestamptz, p_priority integer,
                         p_run_at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN p_turned AND p_freed IS NOT NULL THEN order_key(p_freed, p_priority)
          ELSE order_key(p_run_at, p_priority) END $$;

CREATE FUNCTION activate(s slot, p_ord bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO slot VALUES
        (s.type, s.key, 0, s.lane, p_ord, s.seq, s.priority, s.run_at, s.needs);
    INSERT INTO ready (lane, ord, seq, needs) VALUES (s.lane, p_ord, s.seq, s.needs);
    PERFORM count_in(s.lane, 1, 1);
END $$;

CREATE FUNCTION park(s slot, p_turned boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO slot VALUES (s.type, s.key, CASE WHEN p_turned THEN 1 ELSE 2 END, s.lane,
        CASE WHEN p_turned THEN -s.priority ELSE order_key(s.run_at, s.priority) END,
        s.seq, s.priority, s.run_at, s.needs);
    PERFORM count_in(s.lane, 3, 1);
END $$;

CREATE FUNCTION leave_ready(p_lane integer, p_ord bigint, p_seq bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ready WHERE lane = p_lane AND ord = p_ord AND seq = p_seq;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM count_in(p_lane, 1, -1);
    RETURN true;
END $$;

CREATE FUNCTION deactivate(s slot) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM slot WHERE type = s.type AND key = s.key AND stage = 0 AND lane = s.lane
        AND ord = s.ord AND seq = s.seq;
    IF NOT leave_ready(s.lane, s.ord, s.seq) THEN
        RAISE EXCEPTION 'task number % is not in line for its concurrency_key', s.seq
            USING ERRCODE = 'data_corrupted';
    END IF;
    PERFORM park(s, s.ord <> order_key(s.run_at, s.priority));
END $$;

-- Moves parked tasks of a lane to `ready` while there is room.
CREATE FUNCTION refill(p_type text, p_key text, p_lane integer, p_room integer,
                       p_freed timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_active integer; s slot; v_ord bigint;
BEGIN
    SELECT count(*) INTO v_active FROM slot
    WHERE type = p_type AND key = p_key AND stage = 0 AND lane = p_lane;
    WHILE v_active < p_room LOOP
        SELECT x.* INTO s FROM (
            (SELECT * FROM slot WHERE type = p_type AND key = p_key AND stage = 1
               AND lane = p_lane ORDER BY ord, seq LIMIT 1)
            UNION ALL
            (SELECT * FROM slot WHERE type = p_type AND key = p_key AND stage = 2
               AND lane = p_lane ORDER BY ord, seq LIMIT 1)
        ) AS x ORDER BY place_of(x.stage = 1, p_freed, x.priority, x.run_at), x.seq LIMIT 1;
        IF NOT FOUND THEN RETURN; END IF;
        DELETE FROM slot WHERE type = s.type AND key = s.key AND stage = s.stage
            AND lane = s.lane AND ord = s.ord AND seq = s.seq;
        PERFORM count_in(s.lane, 3, -1);
        v_ord := place_of(s.stage = 1, p_freed, s.priority, s.run_at);
        PERFORM activate(s, v_ord);
        v_active := v_active + 1;
    END LOOP;
END $$;

-- Parks what stands in `ready` beyond the room, then fills what is free, in every lane.
CREATE FUNCTION refit(p_type text, p_key text, p_most integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE u turn; v_room integer; v_lane integer; v_active integer; s slot;
BEGIN
    SELECT * INTO u FROM turn WHERE type = p_type AND key = p_key;
    v_room := greatest(p_most - coalesce(u.running, 0), 0);
    FOR v_lane IN SELECT id FROM lane WHERE type = p_type ORDER BY id LOOP
        SELECT count(*) INTO v_active FROM slot
        WHERE type = p_type AND key = p_key AND stage = 0 AND lane = v_lane;
        WHILE v_active > v_room LOOP
            SELECT * INTO s FROM slot
            WHERE type = p_type AND key = p_key AND stage = 0 AND lane = v_lane
            ORDER BY ord DESC, seq DESC LIMIT 1;
            PERFORM deactivate(s);
            v_active := v_active - 1;
        END LOOP;
        PERFORM refill(p_type, p_key, v_lane, v_room, u.freed);
    END LOOP;
END $$;

CREATE FUNCTION refit_type(p_type text, p_most integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_key text;
BEGIN
    FOR v_key IN SELECT DISTINCT key FROM slot WHERE type = p_type ORDER BY 1 LOOP
        PERFORM tie_key(p_type, v_key);
        PERFORM refit(p_type, v_key, p_most);
    END LOOP;
END $$;

CREATE FUNCTION add_turn(p_type text, p_key text, p_n integer, p_freed timestamptz)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO turn AS u (type, key, running, freed) VALUES (p_type, p_key, p_n, p_freed)
    ON CONFLICT (type, key) DO UPDATE
    SET running = u.running + p_n, freed = greatest(u.freed, excluded.freed)
$$;

-- A task with a concurrency_key comes in line. `p_waited`: it had been pending before it was
-- due, so it may have missed no turn.
CREATE FUNCTION line_up(t task, p_waited boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_type text := type_of(t.lane); u turn; v_room integer; v_active integer;
    v_turned boolean; v_ord bigint; s slot; v_last slot;
BEGIN
    PERFORM tie_key(v_type, t.concurrency_key);
    SELECT * INTO u FROM turn WHERE type = v_type AND key = t.concurrency_key;
    v_turned := p_waited AND u.freed IS NOT NULL AND t.run_at <= u.freed;
    v_room := greatest(per_key_of(v_type) - coalesce(u.running, 0), 0);
    v_ord := place_of(v_turned, u.freed, t.priority, t.run_at);
    s := (v_type, t.concurrency_key, 2, t.lane, v_ord, t.seq, t.priority, t.run_at,
          needs_of(t.execution_key, t.expires_at, t.concurrency_key))::slot;
    SELECT count(*) INTO v_active FROM slot
    WHERE type = v_type AND key = t.concurrency_key AND stage = 0 AND lane = t.lane;
    IF v_active < v_room THEN
        PERFORM activate(s, v_ord);
        RETURN;
    END IF;
    IF v_room > 0 THEN
        SELECT * INTO v_last FROM slot
        WHERE type = v_type AND key = t.concurrency_key AND stage = 0 AND lane = t.lane
        ORDER BY ord DESC, seq DESC LIMIT 1;
        IF (v_ord, t.seq) < (v_last.ord, v_last.seq) THEN
            PERFORM deactivate(v_last);
            PERFORM activate(s, v_ord);
            RETURN;
        END IF;
    END IF;
    PERFORM park(s, v_turned);
END $$;

-- A task with a concurrency_key that is in line leaves it without running. False: it is not.
CREATE FUNCTION leave_line(t task) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_type text := type_of(t.lane); s slot; u turn;
BEGIN
    PERFORM tie_key(v_type, t.concurrency_key);
    SELECT * INTO s FROM slot
    WHERE type = v_type AND key = t.concurrency_key AND seq = t.seq AND lane = t.lane;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM slot WHERE type = s.type AND key = s.key AND stage = s.stage
        AND lane = s.lane AND ord = s.ord AND seq = s.seq;
    IF s.stage > 0 THEN
        PERFORM count_in(s.lane, 3, -1);
        RETURN true;
    END IF;
    IF NOT leave_ready(s.lane, s.ord, s.seq) THEN
        RAISE EXCEPTION 'task number % is not in line for its concurrency_key', s.seq
            USING ERRCODE = 'data_corrupted';
    END IF;
    SELECT * INTO u FROM turn WHERE type = s.type AND key = s.key;
    PERFORM refill(s.type, s.key, s.lane,
        greatest(per_key_of(s.type) - coalesce(u.running, 0), 0), u.freed);
    RETURN true;
END $$;

-- A task of a key that stood in `ready` runs; its row there is gone.
CREATE FUNCTION slot_claimed(p_type text, p_key text, p_lane integer, p_ord bigint, p_seq bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM slot WHERE type = p_type AND key = p_key AND stage = 0 AND lane = p_lane
        AND ord = p_ord AND seq = p_seq;
    PERFORM add_turn(p_type, p_key, 1, NULL);
    PERFORM refit(p_type, p_key, per_key_of(p_type));
END $$;

-- A task of a key stopped running; a saturated key takes turns.
CREATE FUNCTION slot_freed(p_type text, p_key text, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE u turn; v_most integer := per_key_of(p_type); v_freed timestamptz;
BEGIN
    PERFORM tie_key(p_type, p_key);
    SELECT * INTO u FROM turn WHERE type = p_type AND key = p_key;
    IF u.running >= v_most THEN
        v_freed := greatest(u.freed, p_at);
        UPDATE slot SET stage = 1, ord = -priority
        WHERE type = p_type AND key = p_key AND stage = 2 AND run_at <= v_freed;
    END IF;
    PERFORM add_turn(p_type, p_key, -1, v_freed);
    PERFORM refit(p_type, p_key, v_most);
END $$;

-- ------------------------------------------------------------------ places

-- A pending task waits where it belongs. `p_waited`: it was pending before, and is due now.
CREATE FUNCTION wait_for(t task, p_now timestamptz, p_waited boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_needs smallint := needs_of(t.execution_key, t.expires_at, t.concurrency_key);
BEGIN
    IF t.held THEN
        IF t.schedule_uid IS NULL THEN
            INSERT INTO schedule_live VALUES
                ('00000000-0000-0000-0000-000000000000', true, t.seq);
        END IF;
        PERFORM count_in(t.lane, 4, 1);
    ELSIF t.run_at > p_now THEN
        INSERT INTO scheduled (run_at, seq, lane, ord, needs)
        VALUES (t.run_at, t.seq, t.lane, order_key(t.run_at, t.priority), v_needs);
        PERFORM count_in(t.lane, 2, 1);
    ELSIF t.concurrency_key IS NOT NULL THEN
        PERFORM line_up(t, p_waited);
    ELSE
        INSERT INTO ready (lane, ord, seq, needs)
        VALUES (t.lane, order_key(t.run_at, t.priority), t.seq, v_needs);
        PERFORM count_in(t.lane, 1, 1);
    END IF;
END $$;

-- False: it waits nowhere, because somebody has just moved it.
CREATE FUNCTION stop_waiting(t task) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF t.held THEN
        IF t.schedule_uid IS NULL THEN
            DELETE FROM schedule_live
            WHERE schedule_uid = '00000000-0000-0000-0000-000000000000' AND held
              AND seq = t.seq;
        END IF;
        PERFORM count_in(t.lane, 4, -1);
        RETURN true;
    END IF;
    DELETE FROM scheduled WHERE run_at = t.run_at AND seq = t.seq;
    IF FOUND THEN
        PERFORM count_in(t.lane, 2, -1);
        RETURN true;
    END IF;
    IF t.concurrency_key IS NOT NULL THEN RETURN leave_line(t); END IF;
    RETURN leave_ready(t.lane, order_key(t.run_at, t.priority), t.seq);
END $$;

CREATE FUNCTION enter(t task, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF t.expires_at IS NOT NULL THEN
        INSERT INTO expiring VALUES (t.expires_at, t.seq);
    END IF;
    PERFORM wait_for(t, p_now, false);
END $$;

CREATE FUNCTION leave(t task) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT stop_waiting(t) THEN RETURN false; END IF;
    IF t.expires_at IS NOT NULL THEN
        DELETE FROM expiring WHERE expires_at = t.expires_at AND seq = t.seq;
    END IF;
    RETURN true;
END $$;

-- Lets the first held task of a schedule go on when no active one is left.
CREATE FUNCTION release_held(p_uid uuid, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_seq bigint; t task;
BEGIN
    IF EXISTS (SELECT 1 FROM schedule_live WHERE schedule_uid = p_uid AND NOT held) THEN
        RETURN;
    END IF;
    SELECT seq INTO v_seq FROM schedule_live WHERE schedule_uid = p_uid AND held
    ORDER BY seq LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE schedule_live SET held = false WHERE schedule_uid = p_uid AND held AND seq = v_seq;
    UPDATE task SET held = false, run_at = greatest(run_at, p_now) WHERE seq = v_seq
    RETURNING * INTO STRICT t;
    PERFORM count_in(t.lane, 4, -1);
    PERFORM wait_for(t, p_now, false);
END $$;

-- Puts in line what has become due, at most `p_limit`. Answers how many there were.
CREATE FUNCTION promote(p_now timestamptz, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE v_count integer; v_keyed bigint[]; t task; v_seq bigint;
BEGIN
    WITH due AS (
        DELETE FROM scheduled WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM scheduled WHERE run_at <= p_now ORDER BY run_at, seq
            LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING *
    ), plain AS (
        INSERT INTO ready (lane, ord, seq, needs)
        SELECT lane, ord, seq, needs FROM due WHERE needs < 2
    ), counted AS (
        INSERT INTO tally (lane, place, n)
        SELECT lane, 2, -count(*) FROM due GROUP BY lane
        UNION ALL
        SELECT lane, 1, count(*) FROM due WHERE needs < 2 GROUP BY lane
    )
    SELECT count(*), array_agg(seq ORDER BY run_at, seq) FILTER (WHERE needs >= 2)
    INTO v_count, v_keyed FROM due;
    IF v_keyed IS NOT NULL THEN
        PERFORM tie_tasks(v_keyed);
        FOREACH v_seq IN ARRAY v_keyed LOOP
            SELECT * INTO STRICT t FROM task WHERE seq = v_seq;
            PERFORM wait_for(t, p_now, true);
        END LOOP;
    END IF;
    RETURN v_count;
END $$;

-- After the clock was set back: what stands in line but is not due, waits once more.
CREATE FUNCTION follow_clock(p_now timestamptz) RETURNS integer
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_early bigint[]; v_seq bigint; t task; v_count integer := 0;
BEGIN
    SELECT array_agg(e.seq ORDER BY e.seq) INTO v_early FROM (
        SELECT r.seq FROM ready AS r JOIN task AS x ON x.seq = r.seq WHERE x.run_at > p_now
        UNION
        SELECT s.seq FROM slot AS s WHERE s.stage > 0 AND s.run_at > p_now
    ) AS e;
    IF v_early IS NULL THEN RETURN 0; END IF;
    PERFORM tie_tasks(v_early);
    FOREACH v_seq IN ARRAY v_early LOOP
        SELECT * INTO t FROM task AS x WHERE x.seq = v_seq FOR UPDATE;
        CONTINUE WHEN NOT FOUND OR t.run_at <= p_now OR NOT stop_waiting(t);
        PERFORM wait_for(t, p_now, false);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- ------------------------------------------------------------------ endings

-- What a task held, it holds no longer. 2 completed, 3 failed, 4 cancelled.
CREATE FUNCTION let_go(t task, p_ending integer, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF t.execution_key IS NOT NULL THEN
        IF p_ending = 2 THEN
            UPDATE exec_key SET at = p_at, result = t.result
            WHERE type = type_of(t.lane) AND key = t.execution_key AND id = t.id;
        ELSE
            DELETE FROM exec_key
            WHERE type = type_of(t.lane) AND key = t.execution_key AND id = t.id;
        END IF;
    END IF;
    IF t.schedule_uid IS NULL THEN RETURN; END IF;
    PERFORM tie_schedule(t.schedule_uid);
    DELETE FROM schedule_live WHERE schedule_uid = t.schedule_uid AND seq = t.seq;
    IF p_ending = 2 THEN
        DELETE FROM schedule_failures WHERE schedule_uid = t.schedule_uid;
    ELSIF p_ending = 3 THEN
        INSERT INTO schedule_failures AS f VALUES (t.schedule_uid, 1)
        ON CONFLICT (schedule_uid) DO UPDATE SET count = f.count + 1;
    END IF;
    PERFORM release_held(t.schedule_uid, p_at);
END $$;

CREATE FUNCTION file_away(t task) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM task WHERE seq = t.seq;
    INSERT INTO history VALUES (t.*);
END $$;

-- Cancels a task that waited until just now.
CREATE FUNCTION cancel_left(t task, p_reason text, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    t.state := 4; t.held := false; t.finished_at := p_at; t.cancel_reason := p_reason;
    PERFORM file_away(t);
    PERFORM count_in(t.lane, 8, 1);
    PERFORM let_go(t, 4, p_at);
END $$;

-- Completes a task that waited until just now with the result of the one that had its key.
CREATE FUNCTION deduplicate_left(t task, p_result text, p_at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    t.state := 2; t.held := false; t.finished_at := p_at; t.deduplicated := true;
    t.result := p_result;
    PERFORM file_away(t);
    PERFORM count_in(t.lane, 6, 1);
    PERFORM let_go(t, 2, p_at);
END $$;

-- Whether a task that may start ends instead: 0 it starts, 1 it has expired, 2 another one has
-- completed its key.
CREATE FUNCTION ends_unrun(t task, p_now timestamptz, OUT why integer, OUT kept text)
LANGUAGE plpgsql AS $$
BEGIN
    why := 0;
    IF t.expires_at <= p_now THEN
        why := 1;
    ELSIF t.execution_key IS NOT NULL THEN
        SELECT 2, result INTO why, kept FROM exec_key
        WHERE type = type_of(t.lane) AND key = t.execution_key AND id <> t.id
          AND at IS NOT NULL;
        why := coalesce(why, 0);
    END IF;
END $$;

CREATE FUNCTION end_unrun(t task, p_why integer, p_kept text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF t.expires_at IS NOT NULL THEN
        DELETE FROM expiring WHERE expires_at = t.expires_at AND seq = t.seq;
    END IF;
    IF p_why = 1 THEN
        PERFORM cancel_left(t, 'expired', p_now);
    ELSE
        PERFORM deduplicate_left(t, p_kept, p_now);
    END IF;
END $$;

-- A task, wherever it is. A function, because its plan is made once for a session, and because it
-- sees what this transaction has written, wherever it is called from.
CREATE FUNCTION find_task(p_id uuid) RETURNS SETOF task_full
LANGUAGE plpgsql ROWS 1 SET search_path = matins, pg_temp SET jit = off AS $$
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
LANGUAGE plpgsql ROWS 100 SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_id uuid;
BEGIN
    FOREACH v_id IN ARRAY p_ids LOOP
        RETURN QUERY SELECT * FROM find_task(v_id);
    END LOOP;
END $$;

-- Attempts of a task: those that did not end it, then the one that did.
CREATE FUNCTION find_attempts(p_id uuid) RETURNS SETOF attempt
LANGUAGE plpgsql ROWS 5 SET search_path = matins, pg_temp SET jit = off AS $$
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

-- ------------------------------------------------------------------ taking tasks in

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
LANGUAGE plpgsql ROWS 100 SET search_path = matins, pg_temp SET jit = off AS $$
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

-- A batch of tasks that nothing stands in the way of: new ids, no keys, no schedule.
CREATE FUNCTION enqueue_plain(
    p_ids uuid[], p_pools text[], p_types text[], p_payloads text[], p_priorities smallint[],
    p_run_at timestamptz[], p_expires_at timestamptz[], p_tags text[], p_max_retries bigint[],
    p_backoff text[], p_timeout_us bigint[], p_created_by text[], p_now timestamptz
) RETURNS void LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
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
    )
    INSERT INTO tally (lane, place, n)
    SELECT lane, CASE WHEN run_at <= p_now THEN 1 ELSE 2 END, count(*) FROM n GROUP BY 1, 2;
END $$;

-- ------------------------------------------------------------------ handing out

-- A lease must cover what is handed out.
CREATE FUNCTION may_claim(p_worker text, p_lease timestamptz, p_now timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT 1 FROM setting WHERE scope = 'frozen')
       AND (p_lease IS NOT NULL OR EXISTS (
            SELECT 1 FROM worker
            WHERE name = p_worker AND NOT retired AND lease_until >= p_now))
$$;

-- What still stands of what an earlier call with the same token was given.
CREATE FUNCTION claimed_before(p_worker text, p_token bigint)
RETURNS TABLE (fence bigint, next_at timestamptz, t task)
LANGUAGE sql STABLE ROWS 50 SET search_path = matins, pg_temp SET jit = off AS $$
    SELECT r.fence, NULL::timestamptz, t FROM running AS r JOIN task AS t ON t.id = r.id
    WHERE r.worker = p_worker AND r.token = p_token ORDER BY r.fence
$$;

-- Writes claims about tasks that are out of line, in order. Answers their fences.
CREATE FUNCTION start(p_seqs bigint[], p_worker text, p_token bigint, p_lease timestamptz,
                      p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE v_fences bigint[];
BEGIN
    WITH x AS MATERIALIZED (
        SELECT nextval('fence_seq') AS fence, o.nth, o.seq
        FROM (SELECT * FROM unnest(p_seqs) WITH ORDINALITY AS u (seq, nth)
              ORDER BY nth OFFSET 0) AS o
    ), r AS (
        INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                             cancel_requested_at, tied)
        SELECT t.id, t.seq, x.fence, p_token, p_worker, t.lane, p_now, p_lease,
               t.cancel_requested_at,
               t.execution_key IS NOT NULL OR t.concurrency_key IS NOT NULL
                   OR t.schedule_uid IS NOT NULL
        FROM x JOIN task AS t ON t.seq = x.seq
    )
    SELECT array_agg(fence ORDER BY nth) INTO v_fences FROM x;
    RETURN v_fences;
END $$;

CREATE FUNCTION forget_expiry(p_seqs bigint[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM expiring AS e USING task AS t
    WHERE t.seq = ANY(p_seqs) AND t.expires_at IS NOT NULL
      AND e.expires_at = t.expires_at AND e.seq = t.seq
$$;

-- What the limits of types and the quarantine slot leave, for some lanes, with the locks that
-- keep it true until the end of the transaction. A lane without a row here is unlimited. Lanes
-- of one type share a `kind`.
CREATE TYPE allowance AS (
    lane integer, type text, quarantine boolean, room bigint, tokens bigint,
    spent_until timestamptz, interval_us bigint, period_us bigint, used boolean
);

CREATE FUNCTION allowances(p_lanes integer[], p_now timestamptz) RETURNS allowance[]
LANGUAGE plpgsql AS $$
DECLARE v_all allowance[]; r record; a allowance; v_busy boolean := false; v_spent bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM lane WHERE id = ANY(p_lanes) AND quarantine) THEN
        PERFORM tie_quarantine();
        v_busy := EXISTS (SELECT 1 FROM running AS x JOIN lane AS l ON l.id = x.lane
                          WHERE l.quarantine);
    END IF;
    FOR r IN
        SELECT l.type, (s.value::json ->> 'concurrency')::bigint AS most,
               s.value::json ->> 'rate_limit' AS rate
        FROM (SELECT DISTINCT type FROM lane WHERE id = ANY(p_lanes)) AS l
        LEFT JOIN setting AS s ON s.scope = 'limit' AND s.name = l.type ORDER BY 1
    LOOP
        a := NULL;
        a.type := r.type;
        IF r.most IS NOT NULL OR r.rate IS NOT NULL THEN PERFORM tie_type(r.type); END IF;
        IF r.most IS NOT NULL THEN
            a.room := r.most - (SELECT count(*) FROM running AS x JOIN lane AS l ON l.id = x.lane
                                WHERE l.type = r.type);
        END IF;
        IF r.rate IS NOT NULL THEN
            a.period_us := CASE right(r.rate, 1) WHEN 's' THEN 1 WHEN 'm' THEN 60
                           WHEN 'h' THEN 3600 ELSE 86400 END * 1000000::bigint;
            a.interval_us := greatest(a.period_us / split_part(r.rate, '/', 1)::bigint, 1);
            SELECT spent_until INTO a.spent_until FROM rate WHERE type = r.type;
            v_spent := greatest(micros(coalesce(a.spent_until, p_now)), micros(p_now));
            a.tokens := least(greatest((micros(p_now) + a.period_us - v_spent) / a.interval_us, 0),
                              split_part(r.rate, '/', 1)::bigint);
        END IF;
        FOR a.lane, a.quarantine IN SELECT id, quarantine FROM lane
                                    WHERE type = r.type AND id = ANY(p_lanes) LOOP
            IF a.quarantine OR r.most IS NOT NULL OR r.rate IS NOT NULL THEN
                v_all := v_all || a;
                IF a.quarantine AND v_busy THEN
                    v_all[array_length(v_all, 1)].room := 0;
                END IF;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_all;
END $$;

-- One task of a lane starts.
CREATE FUNCTION spend(p_all allowance[], p_lane integer, p_now timestamptz) RETURNS allowance[]
LANGUAGE plpgsql AS $$
DECLARE v_type text; v_quarantine boolean; a allowance;
BEGIN
    IF p_all IS NULL THEN RETURN p_all; END IF;
    SELECT type, quarantine INTO v_type, v_quarantine FROM unnest(p_all) WHERE lane = p_lane;
    IF NOT FOUND THEN RETURN p_all; END IF;
    FOR i IN 1..array_length(p_all, 1) LOOP
        a := p_all[i];
        IF a.quarantine AND v_quarantine THEN
            a.room := 0;
        ELSIF a.type = v_type THEN
            a.room := a.room - 1;
        END IF;
        IF a.type = v_type THEN
            a.used := true;
            a.tokens := a.tokens - 1;
            a.spent_until := greatest(coalesce(a.spent_until, p_now), p_now)
                             + a.interval_us * interval '1 microsecond';
        END IF;
        p_all[i] := a;
    END LOOP;
    RETURN p_all;
END $$;

-- Keeps what of the rates has been used up.
CREATE FUNCTION save_rates(p_all allowance[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rate (type, spent_until)
    SELECT DISTINCT type, spent_until FROM unnest(p_all)
    WHERE used AND interval_us IS NOT NULL
    ON CONFLICT (type) DO UPDATE SET spent_until = excluded.spent_until;
END $$;

CREATE FUNCTION lanes_served(p_pool text, p_types text[]) RETURNS integer[]
LANGUAGE sql STABLE AS $$
    SELECT array_agg(l.id) FROM lane AS l
    WHERE (p_pool IS NULL OR l.pool = p_pool) AND (p_types IS NULL OR l.type = ANY(p_types))
      AND NOT EXISTS (SELECT 1 FROM setting AS s WHERE s.scope = 'pool' AND s.name = l.pool
                      AND (s.value::json ->> 'paused')::boolean)
$$;

-- The next due time in some lanes, or an earlier instant to look again.
CREATE FUNCTION next_due(p_lanes integer[], p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    WITH glance AS (
        SELECT run_at, lane FROM scheduled WHERE run_at > p_now ORDER BY run_at, seq LIMIT 64)
    SELECT coalesce(
        (SELECT min(run_at) FROM glance WHERE lane = ANY(p_lanes)),
        (SELECT max(run_at) FROM glance HAVING count(*) = 64))
$$;

-- Takes rows out of `ready` that this transaction has locked.
CREATE FUNCTION take_out(p_ctids tid[], p_lanes integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ready WHERE ctid = ANY(p_ctids);
    INSERT INTO tally (lane, place, n)
    SELECT u.lane, 1, -count(*) FROM unnest(p_lanes) AS u (lane) GROUP BY u.lane;
END $$;

CREATE FUNCTION rate_opens(a allowance, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(p_now, coalesce(a.spent_until, p_now)
                           + (a.interval_us - a.period_us) * interval '1 microsecond')
$$;

-- Up to `p_max` tasks from the head of the line. The lanes that the request may be served from
-- are merged by their heads, so a claim costs what it hands out, plus one look per lane. What
-- lies in other lanes, behind a limit, in the future or in the past is never visited.
--
-- `p_floor_*`: where a lane's live rows are known to begin; what lies before is not looked at.
-- One row at least, which tells when to ask again; `fence` is NULL when nothing was handed out.
CREATE FUNCTION claim(
    p_worker text, p_pool text, p_types text[], p_max integer, p_token bigint,
    p_lease timestamptz, p_now timestamptz, p_floor_lanes integer[], p_floor_ords bigint[]
) RETURNS TABLE (fence bigint, next_at timestamptz, t task)
LANGUAGE plpgsql ROWS 50 SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_served integer[]; v_lanes integer[]; v_all allowance[]; v_seqs bigint[] := '{}'; v_lanes_of integer[] := '{}';
    v_fences bigint[]; v_more boolean; v_promoted integer := 0; v_passed integer := 0;
    v_limit integer := least(greatest(p_max * 2, 256), 2000); v_n integer;
    v_next timestamptz; v_again boolean; v_unfinished boolean := false; v_opening timestamptz;
BEGIN
    IF p_max <= 0 OR NOT may_claim(p_worker, p_lease, p_now) THEN
        RETURN QUERY SELECT NULL::bigint, NULL::timestamptz, NULL::task;
        RETURN;
    END IF;
    v_served := lanes_served(p_pool, p_types);
    v_all := allowances(v_served, p_now);
    PERFORM tie_tasks(ARRAY(
        SELECT x.seq FROM (SELECT seq, needs FROM scheduled WHERE run_at <= p_now
                           ORDER BY run_at, seq LIMIT v_limit) AS x WHERE x.needs >= 2
        UNION ALL
        SELECT x.seq FROM unnest(v_served) AS l (id), LATERAL (
            SELECT r.seq, r.needs FROM ready AS r WHERE r.lane = l.id ORDER BY r.ord, r.seq
            LIMIT p_max) AS x WHERE x.needs >= 2));
    v_n := promote(p_now, v_limit);
    v_promoted := v_n;
    v_more := v_n = v_limit;
    LOOP
        SELECT array_agg(l.id) INTO v_lanes FROM unnest(v_served) AS l (id)
        WHERE EXISTS (SELECT 1 FROM ready AS r WHERE r.lane = l.id AND r.ord >= coalesce(
                (SELECT f.ord FROM unnest(p_floor_lanes, p_floor_ords) AS f (lane, ord)
                 WHERE f.lane = l.id), -9223372036854775808));
        v_again := false;
        v_opening := NULL;
        IF v_lanes IS NOT NULL THEN
            SELECT * INTO v_all, v_seqs, v_passed, v_again, v_opening
            FROM hand_out(v_lanes, p_floor_lanes, p_floor_ords, p_max, p_now,
                          v_all, v_seqs, v_passed);
        END IF;
        EXIT WHEN coalesce(array_length(v_seqs, 1), 0) >= p_max;
        IF v_again THEN
            v_unfinished := v_passed >= 200;
            EXIT WHEN v_unfinished;
        ELSIF v_more AND v_promoted < 2000 THEN
            v_n := promote(p_now, v_limit);
            v_promoted := v_promoted + v_n;
            v_more := v_n = v_limit;
        ELSE
            v_unfinished := v_more;
            EXIT;
        END IF;
    END LOOP;
    v_next := v_opening;
    IF v_unfinished THEN
        v_next := least(v_next, p_now + interval '1 microsecond');
    ELSIF coalesce(array_length(v_seqs, 1), 0) < p_max THEN
        v_next := least(v_next, next_due(v_served, p_now));
    END IF;
    IF v_seqs = '{}' THEN
        RETURN QUERY SELECT NULL::bigint, v_next, NULL::task;
        RETURN;
    END IF;
    PERFORM save_rates(v_all);
    v_fences := start(v_seqs, p_worker, p_token, p_lease, p_now);
    RETURN QUERY
        SELECT u.fence, v_next, t FROM unnest(v_seqs, v_fences) AS u (seq, fence)
        JOIN task AS t ON t.seq = u.seq ORDER BY u.fence;
END $$;

-- Takes tasks of some lanes out of line until there are `p_max`. `again`: something ended instead
-- of being run, so the lanes must be looked at anew.
CREATE FUNCTION hand_out(
    p_lanes integer[], p_floor_lanes integer[], p_floor_ords bigint[], p_max integer,
    p_now timestamptz, INOUT allowed allowance[], INOUT seqs bigint[], INOUT passed integer, OUT again boolean, OUT opening timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_left integer := p_max - coalesce(array_length(seqs, 1), 0);
    v_ctids tid[]; v_lane integer[]; v_ord bigint[]; v_seq bigint[]; v_needs smallint[];
    v_gone tid[] := '{}'; a allowance; t task; e record;
    v_taken integer[] := '{}'; v_keyed bigint[];
BEGIN
    again := false;
    -- Ties come before rows: tasks with a concurrency_key that may come up.
    SELECT array_agg(x.seq) INTO v_keyed FROM unnest(p_lanes) AS l (id), LATERAL (
        SELECT r.seq, r.needs FROM ready AS r WHERE r.lane = l.id ORDER BY r.ord, r.seq
        LIMIT v_left) AS x WHERE x.needs >= 2;
    IF v_keyed IS NOT NULL THEN PERFORM tie_tasks(v_keyed); END IF;
    SELECT array_agg(x.ctid ORDER BY x.ord, x.seq), array_agg(x.lane ORDER BY x.ord, x.seq),
           array_agg(x.ord ORDER BY x.ord, x.seq), array_agg(x.seq ORDER BY x.ord, x.seq),
           array_agg(x.needs ORDER BY x.ord, x.seq)
    INTO v_ctids, v_lane, v_ord, v_seq, v_needs
    FROM (
        SELECT y.* FROM unnest(p_lanes) AS l (id)
        LEFT JOIN unnest(p_floor_lanes, p_floor_ords) AS f (lane, ord) ON f.lane = l.id,
        LATERAL (
            SELECT r.ctid, r.lane, r.ord, r.seq, r.needs FROM ready AS r
            WHERE r.lane = l.id AND r.ord >= coalesce(f.ord, -9223372036854775808)
            ORDER BY r.ord, r.seq LIMIT v_left FOR UPDATE SKIP LOCKED) AS y
    ) AS x;
    FOR i IN 1..coalesce(array_length(v_seq, 1), 0) LOOP
        EXIT WHEN coalesce(array_length(seqs, 1), 0) >= p_max;
        IF allowed IS NOT NULL THEN
            SELECT * INTO a FROM unnest(allowed) AS x WHERE x.lane = v_lane[i];
            IF FOUND THEN
                CONTINUE WHEN a.room <= 0;
                IF a.tokens <= 0 THEN
                    opening := least(opening, rate_opens(a, p_now));
                    CONTINUE;
                END IF;
            END IF;
        END IF;
        IF v_needs[i] > 0 THEN
            IF v_needs[i] >= 2 THEN
                -- Parked since it was read, because another task of its key was taken; or its
                -- key was not tied, because it came after that look.
                CONTINUE WHEN NOT EXISTS (SELECT 1 FROM ready AS r WHERE r.lane = v_lane[i]
                    AND r.ord = v_ord[i] AND r.seq = v_seq[i]);
                IF NOT v_seq[i] = ANY(coalesce(v_keyed, '{}')) THEN again := true; EXIT; END IF;
            END IF;
            SELECT * INTO STRICT t FROM task AS x WHERE x.seq = v_seq[i];
            e := ends_unrun(t, p_now);
            IF e.why > 0 THEN
                PERFORM take_out(v_gone, v_taken);
                v_gone := '{}'; v_taken := '{}';
                PERFORM leave_ready(v_lane[i], v_ord[i], v_seq[i]);
                IF t.concurrency_key IS NOT NULL THEN
                    DELETE FROM slot AS s WHERE s.type = type_of(t.lane)
                        AND s.key = t.concurrency_key AND s.stage = 0 AND s.lane = t.lane
                        AND s.seq = t.seq;
                    PERFORM refit(type_of(t.lane), t.concurrency_key,
                                  per_key_of(type_of(t.lane)));
                END IF;
                PERFORM end_unrun(t, e.why, e.kept, p_now);
                passed := passed + 1;
                again := true;
                EXIT;
            END IF;
            IF v_needs[i] >= 2 THEN
                PERFORM leave_ready(v_lane[i], v_ord[i], v_seq[i]);
                PERFORM slot_claimed(type_of(t.lane), t.concurrency_key, v_lane[i], v_ord[i],
                                     v_seq[i]);
            END IF;
            PERFORM forget_expiry(ARRAY[v_seq[i]]);
        END IF;
        IF v_needs[i] < 2 THEN
            v_gone := v_gone || v_ctids[i];
            v_taken := v_taken || v_lane[i];
        END IF;
        seqs := seqs || v_seq[i];
        allowed := spend(allowed, v_lane[i], p_now);
    END LOOP;
    PERFORM take_out(v_gone, v_taken);
END $$;

-- The named tasks, if they are due and nothing else forbids them; wherever they stand in line.
CREATE FUNCTION claim_named(
    p_worker text, p_pool text, p_types text[], p_ids uuid[], p_max integer, p_token bigint,
    p_lease timestamptz, p_now timestamptz
) RETURNS TABLE (fence bigint, next_at timestamptz, t task)
LANGUAGE plpgsql ROWS 10 SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_served integer[]; v_all allowance[]; v_seqs bigint[] := '{}'; v_lanes_of integer[] := '{}';
    v_next timestamptz; v_fences bigint[]; w task; a allowance; e record; v_again boolean;
    v_type text; v_due bigint[]; v_seq bigint; u turn;
BEGIN
    IF p_max <= 0 OR NOT may_claim(p_worker, p_lease, p_now) THEN
        RETURN QUERY SELECT NULL::bigint, NULL::timestamptz, NULL::task;
        RETURN;
    END IF;
    v_served := lanes_served(p_pool, p_types);
    SELECT array_agg(x.seq) INTO v_due FROM task AS x WHERE x.id = ANY(p_ids);
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
    LOOP
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
            EXIT WHEN array_length(v_seqs, 1) >= p_max;
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
        EXIT WHEN NOT v_again;
    END LOOP;
    IF v_seqs = '{}' THEN
        RETURN QUERY SELECT NULL::bigint, v_next, NULL::task;
        RETURN;
    END IF;
    PERFORM save_rates(v_all);
    v_fences := start(v_seqs, p_worker, p_token, p_lease, p_now);
    RETURN QUERY
        SELECT u.fence, v_next, x FROM unnest(v_seqs, v_fences) AS u (seq, fence)
        JOIN task AS x ON x.seq = u.seq ORDER BY u.fence;
END $$;

-- ------------------------------------------------------------------ ending runs

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

-- ------------------------------------------------------------------ what people do

CREATE FUNCTION note_act(p_who text, p_action text, p_target text, p_reason text,
                         p_at timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO audit (time, who, action, target, reason)
    VALUES (p_at, p_who, p_action, p_target, p_reason)
$$;

CREATE FUNCTION not_settled(p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% keeps changing hands', p_what USING ERRCODE = 'serialization_failure';
END $$;

-- Cancels what is pending and asks what is running to end. 0 not found, 1 done, 2 requested,
-- 3 it had ended before.
CREATE FUNCTION cancel_task(p_id uuid, p_reason text, p_at timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE t task;
BEGIN
    FOR i IN 1..50 LOOP
        UPDATE running SET cancel_requested_at = coalesce(cancel_requested_at, p_at)
        WHERE id = p_id;
        IF FOUND THEN RETURN 2; END IF;
        t := lock_task(p_id);
        IF t.id IS NULL THEN
            RETURN CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = p_id) THEN 3 ELSE 0 END;
        END IF;
        IF t.state <> 0 THEN RETURN 3; END IF;
        IF NOT EXISTS (SELECT 1 FROM running WHERE id = p_id) AND leave(t) THEN
            PERFORM cancel_left(t, p_reason, p_at);
            RETURN 1;
        END IF;
    END LOOP;
    PERFORM not_settled('task ' || p_id);
END $$;

CREATE FUNCTION cancel(p_ids uuid[], p_who text, p_reason text, p_at timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_id uuid; v_answers integer[] := '{}'; v_answer integer;
BEGIN
    FOREACH v_id IN ARRAY p_ids LOOP
        v_answer := cancel_task(v_id, 'cancelled', p_at);
        IF v_answer IN (1, 2) THEN
            PERFORM note_act(p_who, 'task.cancel', v_id::text, p_reason, p_at);
        END IF;
        v_answers := v_answers || v_answer;
    END LOOP;
    RETURN v_answers;
END $$;

-- A failed task starts a new round, if its key is free.
CREATE FUNCTION replay(t task, p_payload text, p_at timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
BEGIN
    IF t.execution_key IS NOT NULL THEN
        INSERT INTO exec_key (type, key, id) VALUES (type_of(t.lane), t.execution_key, t.id)
        ON CONFLICT (type, key) DO NOTHING;
        IF NOT FOUND THEN RETURN 4; END IF;
    END IF;
    PERFORM count_in(t.lane, 7, -1);
    IF t.dismissed IS NULL THEN PERFORM count_in(t.lane, 9, -1); END IF;
    DELETE FROM dead_letter WHERE seq = t.seq;
    INSERT INTO attempt (seq, number, worker, started_at, finished_at, outcome, error_class,
        error_message, fingerprint, exit_code, http_status, output, output_dropped, output_gap)
    SELECT t.seq, t.attempt, t.worker, t.started_at, t.finished_at, t.outcome, t.error_class,
        t.error_message, t.fingerprint, t.exit_code, t.http_status, t.output, t.output_dropped,
        t.output_gap
    WHERE t.outcome IS NOT NULL;
    UPDATE task SET state = 0, lane = sibling_lane(t.lane, false), run_at = p_at,
        payload = coalesce(p_payload, payload),
        expires_at = CASE WHEN t.expires_at > p_at THEN t.expires_at END,
        retries = 0, losses = 0, interruptions = 0, replays = replays + 1, finished_at = NULL,
        error_class = NULL, error_message = NULL, fingerprint = NULL, dismissed = NULL,
        worker = NULL, outcome = NULL, exit_code = NULL, http_status = NULL, output = NULL,
        output_dropped = NULL, output_gap = NULL
    WHERE seq = t.seq RETURNING * INTO t;
    IF t.schedule_uid IS NOT NULL THEN
        INSERT INTO schedule_live VALUES (t.schedule_uid, t.held, t.seq);
    END IF;
    PERFORM enter(t, p_at);
    RETURN 2;
END $$;

-- 0 not found, 1 due now, 2 replayed, 3 wrong state, 4 its key is taken.
CREATE FUNCTION retry_task(p_id uuid, p_payload text, p_at timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE t task;
BEGIN
    FOR i IN 1..50 LOOP
        t := lock_task(p_id);
        IF t.id IS NULL THEN
            RETURN CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = p_id) THEN 3 ELSE 0 END;
        END IF;
        IF t.state = 3 THEN RETURN replay(t, p_payload, p_at); END IF;
        IF EXISTS (SELECT 1 FROM running WHERE id = p_id) THEN RETURN 3; END IF;
        IF t.run_at <= p_at THEN
            UPDATE task SET payload = coalesce(p_payload, payload) WHERE seq = t.seq;
            RETURN 1;
        END IF;
        IF leave(t) THEN
            UPDATE task SET payload = coalesce(p_payload, payload), run_at = p_at
            WHERE seq = t.seq RETURNING * INTO t;
            PERFORM enter(t, p_at);
            RETURN 1;
        END IF;
    END LOOP;
    PERFORM not_settled('task ' || p_id);
END $$;

CREATE FUNCTION retry(p_ids uuid[], p_payload text, p_who text, p_reason text, p_at timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_id uuid; v_answers integer[] := '{}'; v_answer integer;
BEGIN
    FOREACH v_id IN ARRAY p_ids LOOP
        v_answer := retry_task(v_id, p_payload, p_at);
        IF v_answer = 1 THEN
            PERFORM note_act(p_who, 'task.retry', v_id::text, p_reason, p_at);
        ELSIF v_answer = 2 THEN
            PERFORM note_act(p_who, 'dead_letter.replay', v_id::text, p_reason, p_at);
        END IF;
        v_answers := v_answers || v_answer;
    END LOOP;
    RETURN v_answers;
END $$;

-- 0 not found, 1 done, 3 wrong state. `p_dismissal`: who, when and why, as JSON.
CREATE FUNCTION dismiss(p_ids uuid[], p_dismissal text, p_who text, p_reason text,
                        p_at timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_id uuid; v_answers integer[] := '{}'; v_answer integer; t task;
BEGIN
    FOREACH v_id IN ARRAY p_ids LOOP
        t := lock_task(v_id);
        IF t.id IS NULL THEN
            v_answer := CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = v_id) THEN 3 ELSE 0 END;
        ELSIF t.state <> 3 OR t.dismissed IS NOT NULL THEN
            v_answer := 3;
        ELSE
            UPDATE task SET dismissed = p_dismissal WHERE seq = t.seq;
            UPDATE dead_letter SET dismissed_at = p_at WHERE seq = t.seq;
            PERFORM count_in(t.lane, 9, -1);
            PERFORM note_act(p_who, 'dead_letter.dismiss', v_id::text, p_reason, p_at);
            v_answer := 1;
        END IF;
        v_answers := v_answers || v_answer;
    END LOOP;
    RETURN v_answers;
END $$;

CREATE FUNCTION expire(p_now timestamptz, p_limit integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_id uuid; v_count bigint := 0; t task;
BEGIN
    FOR v_id IN SELECT x.id FROM (SELECT seq FROM expiring WHERE expires_at <= p_now
                ORDER BY expires_at, seq LIMIT p_limit) AS e JOIN task AS x ON x.seq = e.seq LOOP
        t := lock_task(v_id);
        CONTINUE WHEN t.id IS NULL OR t.state <> 0 OR t.expires_at IS NULL
            OR t.expires_at > p_now OR EXISTS (SELECT 1 FROM running WHERE id = v_id);
        IF leave(t) THEN
            PERFORM cancel_left(t, 'expired', p_now);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

CREATE FUNCTION forget_key(p_type text, p_key text, p_who text, p_reason text, p_at timestamptz)
RETURNS boolean LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
BEGIN
    DELETE FROM exec_key WHERE type = p_type AND key = p_key AND at IS NOT NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM note_act(p_who, 'ledger.forget', p_type || '/' || p_key, p_reason, p_at);
    RETURN true;
END $$;

-- ------------------------------------------------------------------ workers

-- Renews claims with leases of their own. Answers for each: 0 it no longer stands, 1 it does,
-- 2 it does, but its task should end.
CREATE FUNCTION extend(p_ids uuid[], p_fences bigint[], p_tokens bigint[],
                       p_lease timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_answers integer[];
BEGIN
    WITH c AS (
        SELECT * FROM unnest(p_ids, p_fences, p_tokens) WITH ORDINALITY
            AS u (id, fence, token, nth)
    ), r AS (
        -- What the worker's lease covers has none of its own.
        UPDATE running AS r SET lease_until = CASE WHEN r.lease_until IS NOT NULL THEN p_lease END
        FROM (SELECT DISTINCT id, fence, token FROM c) AS d
        WHERE r.id = d.id AND r.fence = d.fence AND r.token = d.token
        RETURNING r.id, r.fence, r.token, r.cancel_requested_at IS NOT NULL AS asked
    )
    SELECT array_agg(CASE WHEN r.id IS NULL THEN 0 WHEN r.asked THEN 2 ELSE 1 END ORDER BY nth)
    INTO v_answers FROM c LEFT JOIN r USING (id, fence, token);
    RETURN coalesce(v_answers, '{}');
END $$;

-- Says in a worker's entry that a session watches over it.
CREATE FUNCTION guard_worker(p_name text) RETURNS SETOF text
LANGUAGE sql ROWS 1 SET search_path = matins, pg_temp SET jit = off AS $$
    UPDATE worker SET guarded = true WHERE name = p_name RETURNING name
$$;

-- ------------------------------------------------------------------ schedules

CREATE FUNCTION remove_schedule(p_name text, p_who text, p_reason text, p_at timestamptz)
RETURNS boolean LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_uid uuid; v_id uuid;
BEGIN
    SELECT uid INTO v_uid FROM schedule WHERE name = p_name;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM tie_schedule(v_uid);
    DELETE FROM schedule WHERE name = p_name AND uid = v_uid;
    IF NOT FOUND THEN RETURN false; END IF;
    -- The last one first, or the end of one would release the next.
    FOR v_id IN SELECT t.id FROM schedule_live AS v JOIN task AS t ON t.seq = v.seq
                WHERE v.schedule_uid = v_uid AND v.held ORDER BY v.seq DESC LOOP
        PERFORM cancel_task(v_id, 'schedule_removed', p_at);
    END LOOP;
    PERFORM note_act(p_who, 'schedule.remove', p_name, p_reason, p_at);
    RETURN true;
END $$;

-- Applies plans, each by itself: occurrences, tasks and cursor together, or false when the
-- schedule or one of the occurrences was decided by somebody else.
CREATE FUNCTION fire(p_plans jsonb, p_now timestamptz)
RETURNS boolean[] LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE p jsonb; v_answers boolean[] := '{}';
BEGIN
    FOR p IN SELECT value FROM jsonb_array_elements(p_plans) LOOP
        v_answers := v_answers || fire_plan(p, p_now);
    END LOOP;
    RETURN v_answers;
END $$;

CREATE FUNCTION fire_plan(p jsonb, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_uid uuid := (p ->> 'uid')::uuid; s record; v_ids jsonb := '{}'; v_id uuid;
BEGIN
    PERFORM 1 FROM schedule WHERE name = p ->> 'name' AND uid = v_uid
        AND rev = (p ->> 'expected_rev')::bigint FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM tie_schedule(v_uid);
    IF EXISTS (
        SELECT 1 FROM jsonb_array_elements(p -> 'occurrences') AS o
        JOIN occurrence AS k ON k.schedule_uid = (o ->> 'schedule_uid')::uuid
            AND k.label = o ->> 'label' AND k.kind = 'scheduled'
        WHERE o ->> 'kind' = 'scheduled') THEN
        RETURN false;
    END IF;
    IF (p ->> 'cancel_previous')::boolean THEN
        -- Held ones first, the last one first, so that none of them releases another.
        FOR v_id IN SELECT t.id FROM schedule_live AS v JOIN task AS t ON t.seq = v.seq
                    WHERE v.schedule_uid = v_uid ORDER BY v.held DESC, v.seq DESC LOOP
            PERFORM cancel_task(v_id, 'overlap', p_now);
        END LOOP;
    END IF;
    FOR s IN SELECT value ->> 'label' AS start_label,
                    jsonb_populate_record(NULL::new_task, value -> 'task') AS task
             FROM jsonb_array_elements(p -> 'starts') LOOP
        SELECT id INTO v_id FROM accept(s.task, p_now);
        v_ids := v_ids || jsonb_build_object(s.start_label, v_id);
    END LOOP;
    INSERT INTO occurrence (schedule_uid, schedule, label, label_to, count, kind, time, outcome,
                            reason, task_id, fired_at)
    SELECT o.schedule_uid, o.schedule, o.label, o.label_to, o.count, o.kind, o.time, o.outcome,
           o.reason, coalesce((v_ids ->> o.label)::uuid, o.task_id), o.fired_at
    FROM ROWS FROM (jsonb_to_recordset(p -> 'occurrences') AS (
        schedule_uid uuid, schedule text, label text, label_to text, count bigint, kind text,
        time timestamptz, outcome text, reason text, task_id uuid, fired_at timestamptz
    )) WITH ORDINALITY AS o (schedule_uid, schedule, label, label_to, count, kind, time, outcome,
        reason, task_id, fired_at, nth)
    ORDER BY o.nth;
    UPDATE schedule SET rev = (p ->> 'rev')::bigint, next_due = (p ->> 'next_due')::timestamptz,
        state = p ->> 'state', decided = (p ->> 'decided')::bigint
    WHERE name = p ->> 'name';
    RETURN true;
END $$;

-- Writes schedules as they are given, each from what was expected (`expected_rev` NULL: none of
-- that name). `unrecorded` counts what a balance holds without records here.
CREATE FUNCTION put_schedules(p_writes jsonb) RETURNS boolean[]
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE w record; v_answers boolean[] := ARRAY[]::boolean[];
BEGIN
    FOR w IN SELECT * FROM jsonb_to_recordset(p_writes) AS x (
        name text, uid uuid, rev bigint, next_due timestamptz, state text, decided bigint,
        expected_rev bigint)
    LOOP
        IF w.expected_rev IS NULL THEN
            INSERT INTO schedule (name, uid, rev, next_due, state, decided, unrecorded)
            VALUES (w.name, w.uid, w.rev, w.next_due, w.state, w.decided, w.decided)
            ON CONFLICT (name) DO NOTHING;
        ELSE
            UPDATE schedule SET uid = w.uid, rev = w.rev, next_due = w.next_due,
                state = w.state, decided = w.decided,
                unrecorded = CASE WHEN uid = w.uid THEN unrecorded - decided ELSE 0 END
                             + w.decided
            WHERE name = w.name AND rev = w.expected_rev;
        END IF;
        v_answers := v_answers || FOUND;
    END LOOP;
    RETURN v_answers;
END $$;

-- ------------------------------------------------------------------ switches

-- Writes what each (scope, name) is now, NULL where it goes, with an act if `p_who` is given.
-- False, and nothing was written: a value that was `expected` (as a list of one, or of none when
-- there was none) is not there any more.
CREATE FUNCTION change_settings(p_changes jsonb, p_who text, p_action text, p_target text,
                                p_reason text, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE c record; v_before integer;
BEGIN
    FOR c IN SELECT * FROM jsonb_to_recordset(p_changes) AS x (
        scope text, name text, value text, expected text[])
    LOOP
        IF c.expected IS NOT NULL THEN
            -- Of two that find none, one waits here for the other.
            PERFORM pg_advisory_xact_lock(1835103845, hashtext(c.scope || c.name));
            IF ARRAY(SELECT value FROM setting WHERE scope = c.scope AND name = c.name)
               <> c.expected THEN
                RETURN false;
            END IF;
        END IF;
        IF c.value IS NULL THEN
            DELETE FROM setting WHERE scope = c.scope AND name = c.name;
            CONTINUE;
        END IF;
        v_before := per_key_of(c.name);
        INSERT INTO setting (scope, name, value) VALUES (c.scope, c.name, c.value)
        ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value;
        IF c.scope = 'limit' AND v_before <> per_key_of(c.name) THEN
            PERFORM refit_type(c.name, per_key_of(c.name));
        END IF;
    END LOOP;
    IF p_who IS NOT NULL THEN
        PERFORM note_act(p_who, p_action, p_target, p_reason, p_at);
    END IF;
    RETURN true;
END $$;

-- ------------------------------------------------------------------ looking

-- Functions that a statement calls beside a verb see what the verb saw, not what the statement
-- saw when it began: lanes and runs that are new since.
CREATE FUNCTION find_lane(p_lane integer) RETURNS TABLE (pool text, type text)
LANGUAGE plpgsql ROWS 1 SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT l.pool, l.type FROM lane AS l WHERE l.id = p_lane;
END $$;

CREATE FUNCTION find_run(p_id uuid)
RETURNS TABLE (claimed_at timestamptz, cancel_requested_at timestamptz)
LANGUAGE plpgsql ROWS 1 SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT r.claimed_at, r.cancel_requested_at FROM running AS r WHERE r.id = p_id;
END $$;

CREATE FUNCTION slot_place(p_turned boolean, p_freed timestamptz, p_priority integer,
                           p_run_at timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
BEGIN
    RETURN place_of(p_turned, p_freed, p_priority, p_run_at);
END $$;

CREATE FUNCTION catch_up(p_now timestamptz, p_limit integer) RETURNS integer
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
BEGIN
    RETURN promote(p_now, p_limit);
END $$;

-- ------------------------------------------------------------------ upkeep

-- Sums what has been counted so far, if that is more than `p_many` rows.
CREATE FUNCTION fold_tally(p_many integer) RETURNS void
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
BEGIN
    IF (SELECT count(*) FROM (SELECT 1 FROM tally LIMIT p_many + 1) AS x) <= p_many THEN
        RETURN;
    END IF;
    WITH gone AS (DELETE FROM tally RETURNING lane, place, n)
    INSERT INTO tally (lane, place, n)
    SELECT lane, place, sum(n) FROM gone GROUP BY lane, place HAVING sum(n) <> 0;
END $$;

-- A partition of `history` for each of the days from today on.
CREATE FUNCTION make_partitions(p_now timestamptz, p_days integer) RETURNS void
LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
DECLARE v_day timestamp; v_name text;
BEGIN
    FOR i IN 0..p_days LOOP
        v_day := date_trunc('day', p_now AT TIME ZONE 'UTC') + i * interval '1 day';
        v_name := 'history_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('matins.' || v_name) IS NOT NULL;
        BEGIN
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF history FOR VALUES FROM (%L) TO (%L)',
                v_name, v_day AT TIME ZONE 'UTC', (v_day + interval '1 day') AT TIME ZONE 'UTC');
        EXCEPTION
            -- Tasks of that day lie in `history_other` already, where they are pruned as well; or
            -- somebody reads for long, or was quicker: there are days left.
            WHEN check_violation OR lock_not_available OR duplicate_table THEN NULL;
        END;
    END LOOP;
END $$;

-- Drops the partitions in which everything is over. Their rows are counted out of `tally`.
CREATE FUNCTION drop_partitions(p_cutoff timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_part record; v_gone bigint := 0; v_n bigint;
BEGIN
    FOR v_part IN
        SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'matins.history'::regclass AND c.relname ~ '^history_[0-9]{8}$'
          AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'
              <= p_cutoff
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', v_part.name);
            EXECUTE format('DELETE FROM attempt WHERE seq IN (
                SELECT seq FROM %I WHERE attempt > 1)', v_part.name);
            EXECUTE format('INSERT INTO tally (lane, place, n)
                SELECT lane, CASE state WHEN 2 THEN 6 ELSE 8 END, -count(*) FROM %I
                GROUP BY 1, 2', v_part.name);
            EXECUTE format('SELECT count(*) FROM %I', v_part.name) INTO v_n;
            EXECUTE format('DROP TABLE %I', v_part.name);
            v_gone := v_gone + v_n;
        EXCEPTION
            -- Somebody reads it for long: the next time.
            WHEN lock_not_available THEN RETURN v_gone;
        END;
    END LOOP;
    RETURN v_gone;
END $$;

-- Deletes what was over before the cutoffs (NULL: nothing is), at most `p_limit` of each kind;
-- days of which everything is over go as a whole.
CREATE FUNCTION prune(
    p_completed timestamptz, p_cancelled timestamptz, p_failed timestamptz,
    p_ledger timestamptz, p_occurrences timestamptz, p_audit timestamptz, p_traces timestamptz,
    p_limit integer, OUT tasks bigint, OUT ledger bigint, OUT occurrences bigint,
    OUT audited bigint, OUT operations bigint, OUT workers bigint, OUT more boolean
) LANGUAGE plpgsql SET search_path = matins, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE v_dropped bigint; v_large oid[];
BEGIN
    -- What is made and dropped here locks others out for a moment, and must not wait for long.
    PERFORM set_config('lock_timeout', '2s', true);
    PERFORM make_partitions(clock_timestamp(), 3);
    v_dropped := drop_partitions(least(p_completed, p_cancelled));
    PERFORM set_config('lock_timeout', '0', true);
    -- A large day is not taken apart row by row: it goes as a whole when all of it is over.
    v_large := ARRAY(SELECT c.oid FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
                     WHERE i.inhparent = 'matins.history'::regclass
                       AND c.relname <> 'history_other' AND c.reltuples > 50000);
    WITH over AS (
        SELECT at, seq, failed FROM (
            (SELECT finished_at AS at, seq, false AS failed FROM history
             WHERE state = 2 AND finished_at <= p_completed AND tableoid <> ALL(v_large)
             ORDER BY 1 LIMIT p_limit)
            UNION ALL
            (SELECT finished_at, seq, false FROM history
             WHERE state = 4 AND finished_at <= p_cancelled AND tableoid <> ALL(v_large)
             ORDER BY 1 LIMIT p_limit)
            UNION ALL
            (SELECT dismissed_at, seq, true FROM dead_letter
             WHERE dismissed_at <= p_failed ORDER BY 1 LIMIT p_limit)
        ) AS x ORDER BY at, seq LIMIT p_limit
    ), h AS (
        DELETE FROM history AS h USING over AS o
        WHERE h.finished_at = o.at AND h.seq = o.seq AND NOT o.failed
        RETURNING h.seq, h.lane, CASE h.state WHEN 2 THEN 6 ELSE 8 END AS place
    ), d AS (
        DELETE FROM dead_letter AS d USING over AS o WHERE d.seq = o.seq AND o.failed
        RETURNING d.seq
    ), t AS (
        DELETE FROM task AS t USING d WHERE t.seq = d.seq RETURNING t.seq, t.lane, 7 AS place
    ), a AS (
        DELETE FROM attempt AS a USING over AS o WHERE a.seq = o.seq
    ), g AS (
        SELECT * FROM h UNION ALL SELECT * FROM t
    ), c AS (
        INSERT INTO tally (lane, place, n) SELECT lane, place, -count(*) FROM g GROUP BY 1, 2
    )
    SELECT count(*) + v_dropped INTO tasks FROM g;
    WITH k AS (
        DELETE FROM exec_key WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM exec_key WHERE at <= p_ledger ORDER BY at LIMIT p_limit))
        RETURNING 1)
    SELECT count(*) INTO ledger FROM k;
    WITH o AS (
        DELETE FROM occurrence WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM occurrence WHERE coalesce(fired_at, time) <= p_occurrences
            ORDER BY coalesce(fired_at, time) LIMIT p_limit))
        RETURNING schedule_uid, kind, count
    ), s AS (
        UPDATE schedule AS s SET unrecorded = s.unrecorded + x.n
        FROM (SELECT schedule_uid, sum(count) AS n FROM o WHERE kind = 'scheduled'
              GROUP BY 1) AS x
        WHERE s.uid = x.schedule_uid)
    SELECT count(*) INTO occurrences FROM o;
    WITH a AS (
        DELETE FROM audit WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM audit WHERE time <= p_audit ORDER BY time LIMIT p_limit))
        RETURNING 1)
    SELECT count(*) INTO audited FROM a;
    WITH o AS (
        DELETE FROM operation WHERE id IN (
            SELECT id FROM operation WHERE NOT running AND finished_at <= p_audit
            ORDER BY finished_at, id LIMIT p_limit)
        RETURNING 1)
    SELECT count(*) INTO operations FROM o;
    WITH w AS (
        DELETE FROM worker WHERE name IN (
            SELECT w.name FROM worker AS w WHERE w.lease_until <= p_completed
              AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.worker = w.name)
            ORDER BY w.lease_until, w.name LIMIT p_limit)
        RETURNING 1)
    SELECT count(*) INTO workers FROM w;
    DELETE FROM turn AS u WHERE u.running = 0 AND coalesce(u.freed, '-infinity') < p_traces
        AND NOT EXISTS (SELECT 1 FROM slot AS s WHERE s.type = u.type AND s.key = u.key);
    more := EXISTS (SELECT 1 FROM history WHERE state = 2 AND finished_at <= p_completed
                    AND tableoid <> ALL(v_large))
        OR EXISTS (SELECT 1 FROM history WHERE state = 4 AND finished_at <= p_cancelled
                   AND tableoid <> ALL(v_large))
        OR EXISTS (SELECT 1 FROM dead_letter WHERE dismissed_at <= p_failed)
        OR EXISTS (SELECT 1 FROM exec_key WHERE at <= p_ledger)
        OR EXISTS (SELECT 1 FROM occurrence WHERE coalesce(fired_at, time) <= p_occurrences)
        OR EXISTS (SELECT 1 FROM audit WHERE time <= p_audit)
        OR EXISTS (SELECT 1 FROM operation WHERE NOT running AND finished_at <= p_audit)
        OR EXISTS (SELECT 1 FROM worker AS w WHERE w.lease_until <= p_completed
                   AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.worker = w.name));
END $$;
