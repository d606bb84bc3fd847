-- Where a pending task waits: `ready`, `scheduled`, parked (`slot`) or held; how it comes there and
-- how it leaves.

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

-- Puts in line what has become due, at most `p_limit`, from `p_floor` on. Answers how many there
-- were.
CREATE FUNCTION promote(p_now timestamptz, p_limit integer, p_floor timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE v_count integer; v_keyed bigint[]; t task; v_seq bigint;
BEGIN
    WITH due AS (
        DELETE FROM scheduled WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM scheduled WHERE run_at <= p_now AND run_at >= p_floor ORDER BY run_at, seq
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
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
