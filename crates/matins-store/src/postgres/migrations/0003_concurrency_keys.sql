-- Tasks of one concurrency_key: how many stand in line, and who comes next.
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
