-- Alerts on their way to people, and who tells them. An alert is written with the change that is
-- its cause: a row of its own each time, so that nobody waits for another.

CREATE TABLE alert (
    number      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL,
    read        boolean NOT NULL,             -- the one who tells has it in his state
    rule        text NOT NULL,
    subject     text NOT NULL,
    severity    text NOT NULL,
    resolved    boolean NOT NULL,
    facts       text NOT NULL                 -- JSON: [{"name": …, "value": …}, …]
);
CREATE INDEX alert_unread ON alert (number) WHERE NOT read;
CREATE INDEX alert_at ON alert (at);

CREATE TABLE desk (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    teller  text,
    until   timestamptz,                      -- his turn
    state   text                              -- JSON: what he left last
) WITH (fillfactor = 50);
INSERT INTO desk DEFAULT VALUES;

-- Facts that are known.
CREATE FUNCTION facts_of(p_names text[], p_values text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(json_agg(json_build_object('name', name, 'value', value) ORDER BY nth)
                    FILTER (WHERE value IS NOT NULL), '[]')::text
    FROM unnest(p_names, p_values) WITH ORDINALITY AS u (name, value, nth)
$$;

-- The twin of `of_dead_letter` in the core. A trigger, so that tasks that succeed pass none of it.
CREATE FUNCTION raise_dead_letter() RETURNS trigger
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    INSERT INTO alert (at, read, rule, subject, severity, resolved, facts)
    SELECT NEW.failed_at, false, 'dead_letter', l.type, 'warning', false, facts_of(
        ARRAY['task', 'pool', 'attempt', 'error', 'execution_key', 'schedule', 'label'],
        ARRAY[t.id::text, l.pool, t.attempt::text,
              coalesce(left(t.error_class || ': ' || t.error_message, 300), ''),
              t.execution_key, t.schedule, t.label])
    FROM task AS t JOIN lane AS l ON l.id = t.lane WHERE t.seq = NEW.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER raise_dead_letter AFTER INSERT ON dead_letter
    FOR EACH ROW EXECUTE FUNCTION raise_dead_letter();

-- An alert for each missed occurrence of a plan: the twin of `of_occurrence`.
CREATE FUNCTION raise_missed(p jsonb, p_now timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO alert (at, read, rule, subject, severity, resolved, facts)
    SELECT p_now, false, 'missed', o.v ->> 'schedule', 'warning', false, facts_of(
        ARRAY['label', 'count', 'why'],
        ARRAY[o.v ->> 'label', o.v ->> 'count', o.v ->> 'reason'])
    FROM jsonb_array_elements(p -> 'occurrences') WITH ORDINALITY AS o (v, nth)
    WHERE o.v ->> 'outcome' = 'missed' ORDER BY o.nth
$$;

-- Takes or keeps the turn to tell. Written seldom: whoever has nothing to tell only reads.
CREATE FUNCTION take_turn(p_teller text, p_now timestamptz, p_until timestamptz,
                          OUT mine boolean, OUT state text)
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE d desk;
BEGIN
    SELECT * INTO STRICT d FROM desk;
    IF d.teller <> p_teller AND d.until >= p_now THEN mine := false; RETURN; END IF;
    IF d.teller = p_teller AND d.until - p_now > (p_until - p_now) / 2 THEN
        mine := true; state := d.state; RETURN;
    END IF;
    SELECT * INTO STRICT d FROM desk FOR UPDATE;
    mine := d.teller IS NULL OR d.teller = p_teller OR d.until < p_now;
    IF mine THEN
        UPDATE desk SET teller = p_teller, until = p_until;
        state := d.state;
    END IF;
END $$;

CREATE FUNCTION file_alerts(p_teller text, p_read bigint[], p_state text) RETURNS boolean
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    UPDATE desk SET state = p_state WHERE teller = p_teller;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE alert SET read = true WHERE number = ANY(p_read);
    RETURN true;
END $$;
