-- Schedules: written, fired, removed.

CREATE FUNCTION remove_schedule(p_name text, p_who text, p_reason text, p_at timestamptz)
RETURNS boolean LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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

-- Applies plans, each by itself: occurrences, tasks and cursor together, and what is to be told of
-- it, or false when the schedule or one of the occurrences was decided by somebody else.
CREATE FUNCTION fire(p_plans jsonb, p_now timestamptz)
RETURNS boolean[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE p jsonb; v_answers boolean[] := '{}'; v_applied boolean;
BEGIN
    FOR p IN SELECT value FROM jsonb_array_elements(p_plans) LOOP
        v_applied := fire_plan(p, p_now);
        v_answers := v_answers || v_applied;
        IF v_applied THEN PERFORM raise_missed(p, p_now); END IF;
    END LOOP;
    RETURN v_answers;
END $$;

CREATE FUNCTION fire_plan(p jsonb, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM schedule WHERE name = p ->> 'name' AND uid = (p ->> 'uid')::uuid
        AND rev = (p ->> 'expected_rev')::bigint FOR UPDATE;
    IF NOT FOUND OR NOT carry_out(p, p_now) THEN RETURN false; END IF;
    UPDATE schedule SET rev = (p ->> 'rev')::bigint, next_due = (p ->> 'next_due')::timestamptz,
        state = p ->> 'state', decided = (p ->> 'decided')::bigint
    WHERE name = p ->> 'name';
    RETURN true;
END $$;

-- What a plan does beside the schedule, which is locked. False: one of its occurrences was decided
-- by somebody else.
CREATE FUNCTION carry_out(p jsonb, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_uid uuid := (p ->> 'uid')::uuid; s record; v_ids jsonb := '{}'; v_id uuid;
BEGIN
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
    RETURN true;
END $$;

-- Writes schedules as they are given, each from what was expected (`expected_rev` NULL: none of
-- that name). `unrecorded` counts what a balance holds without records here.
CREATE FUNCTION put_schedules(p_writes jsonb) RETURNS boolean[]
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
