-- Leases of claims, and what is switched while servers run.

-- Renews claims with leases of their own. Answers for each: 0 it no longer stands, 1 it does,
-- 2 it does, but its task should end.
CREATE FUNCTION extend(p_ids uuid[], p_fences bigint[], p_tokens bigint[],
                       p_lease timestamptz)
RETURNS integer[] LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
        RETURNING r.id, r.fence, r.token,
                  CASE WHEN r.cancel_requested_at IS NULL THEN 1 ELSE 2 END AS answer
    )
    -- Not a join: without a hash it would compare each with each.
    SELECT array_agg(coalesce(answer, 0) ORDER BY nth) INTO v_answers
    FROM (SELECT nth, max(answer) OVER (PARTITION BY id, fence, token) AS answer
          FROM (SELECT *, NULL::integer AS answer FROM c
                UNION ALL SELECT id, fence, token, NULL, answer FROM r) AS x) AS y
    WHERE nth IS NOT NULL;
    RETURN coalesce(v_answers, '{}');
END $$;

-- Says in a worker's entry that a session watches over it.
CREATE FUNCTION guard_worker(p_name text) RETURNS SETOF text
LANGUAGE sql ROWS 1 SET search_path = matins, pg_temp AS $$
    UPDATE worker SET guarded = true WHERE name = p_name RETURNING name
$$;

-- Writes what each (scope, name) is now, NULL where it goes, with an act if `p_who` is given.
-- False, and nothing was written: a value that was `expected` (as a list of one, or of none when
-- there was none) is not there any more.
CREATE FUNCTION change_settings(p_changes jsonb, p_who text, p_action text, p_target text,
                                p_reason text, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
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
