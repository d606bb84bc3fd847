-- What people do to tasks, and what time does: cancel, retry, dismiss, expire, forget.

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
        IF NOT EXISTS (SELECT 1 FROM running WHERE id = p_id) THEN
            PERFORM must_not_be_dark(t);
            IF leave(t) THEN
                PERFORM cancel_left(t, p_reason, p_at);
                RETURN 1;
            END IF;
        END IF;
    END LOOP;
    PERFORM not_settled('task ' || p_id);
END $$;

CREATE FUNCTION cancel(p_ids uuid[], p_who text, p_reason text, p_at timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
        PERFORM must_not_be_dark(t);
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
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_id uuid; v_count bigint := 0; t task; v_ord bigint;
BEGIN
    FOR v_id IN SELECT x.id FROM (SELECT seq FROM expiring WHERE expires_at <= p_now
                ORDER BY expires_at, seq LIMIT p_limit) AS e JOIN task AS x ON x.seq = e.seq LOOP
        -- Claims lock rows of the line first, then tasks. What one of them looks at just now ends
        -- there, or the next time.
        SELECT * INTO t FROM task WHERE id = v_id;
        IF t.concurrency_key IS NULL THEN
            v_ord := order_key(t.run_at, t.priority);
            PERFORM 1 FROM ready WHERE lane = t.lane AND ord = v_ord AND seq = t.seq
                FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND AND EXISTS (
                SELECT 1 FROM ready WHERE lane = t.lane AND ord = v_ord AND seq = t.seq);
        END IF;
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
RETURNS boolean LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    DELETE FROM exec_key WHERE type = p_type AND key = p_key AND at IS NOT NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM note_act(p_who, 'ledger.forget', p_type || '/' || p_key, p_reason, p_at);
    RETURN true;
END $$;
