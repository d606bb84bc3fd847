-- Schedules fire from Redis alone as tasks run from there: the next instant of one, its *mark*, is
-- mirrored, taken and decided about as a task is claimed. What takes the place of the attempt is
-- the schedule's revision.

-- Whether the generation is the present one, and stays so until the transaction ends: then what
-- was taken under it may be decided about.
CREATE FUNCTION under(p_generation bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    IF (regime_now()).generation <> p_generation THEN RETURN false; END IF;
    PERFORM set_config('matins.word', 'taken', true);
    RETURN true;
END $$;

-- A schedule is decided about or changed: nobody may be firing it in the dark.
CREATE FUNCTION schedule_must_not_be_dark() RETURNS trigger LANGUAGE plpgsql
SET search_path = matins, pg_temp AS $$
BEGIN
    IF NOT may_act_alone() THEN
        RAISE EXCEPTION 'nodes are agreeing on who may work from Redis; try again'
        USING ERRCODE = 'MT005';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER must_not_be_dark BEFORE UPDATE OF rev OR DELETE ON schedule
    FOR EACH STATEMENT EXECUTE FUNCTION schedule_must_not_be_dark();

-- Revisions whose plans were made in the dark and have not come yet, although a later one has.
CREATE TABLE journal_gap (
    schedule_uid    uuid NOT NULL,
    rev             bigint NOT NULL,
    PRIMARY KEY (schedule_uid, rev)
);

-- A plan that was made in the dark. 0 known, 1 applied, 2 somebody else decided: it changes
-- nothing. Each plan holds all that those before it have done to the schedule.
CREATE FUNCTION replay_fire(p_entry uuid, p_at timestamptz, p jsonb) RETURNS integer
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_uid uuid := (p ->> 'uid')::uuid; v_rev bigint := (p ->> 'rev')::bigint;
        v_stored bigint;
BEGIN
    INSERT INTO journal_entry VALUES (p_entry, p_at) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 0; END IF;
    SELECT rev INTO v_stored FROM schedule WHERE name = p ->> 'name' AND uid = v_uid FOR UPDATE;
    IF NOT FOUND THEN RETURN 2; END IF;
    DELETE FROM journal_gap WHERE schedule_uid = v_uid AND rev = v_rev;
    IF NOT FOUND AND v_stored >= v_rev THEN RETURN 2; END IF;
    IF NOT carry_out(p, p_at) THEN RETURN 2; END IF;
    PERFORM raise_missed(p, p_at);
    IF v_stored < v_rev THEN
        PERFORM set_config('matins.word', 'taken', true);
        UPDATE schedule SET rev = v_rev, next_due = (p ->> 'next_due')::timestamptz,
            state = p ->> 'state', decided = (p ->> 'decided')::bigint
        WHERE name = p ->> 'name';
        INSERT INTO journal_gap SELECT v_uid, r FROM generate_series(v_stored + 1, v_rev - 1) AS r;
    END IF;
    RETURN 1;
END $$;
