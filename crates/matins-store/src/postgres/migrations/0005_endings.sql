-- What is left to do when a task ends, whether it ran or not.

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
