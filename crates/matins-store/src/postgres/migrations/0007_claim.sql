-- Handing tasks out.
--
-- A subquery with LIMIT 1 beside a list is a look-up for each entry of the list, whatever the
-- planner believes of the table: a plan that walks the table and, for each of its rows, the list
-- is a disaster that a stale statistic is enough for.

-- A lease must cover what is handed out, and nobody else may have it in the dark.
CREATE FUNCTION may_claim(p_worker text, p_lease timestamptz, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT may_act_alone() THEN RETURN false; END IF;
    RETURN NOT EXISTS (SELECT 1 FROM setting WHERE scope = 'frozen')
       AND (p_lease IS NOT NULL OR EXISTS (
            SELECT 1 FROM worker
            WHERE name = p_worker AND NOT retired AND lease_until >= p_now));
END $$;

-- A task with its claim, as `claim.rs` reads it; the last row has no `fence`, and says when to ask
-- again, where the live rows of lanes begin, and how many dead ones were walked over to find that.
CREATE TYPE handed AS (
    fence bigint, claimed_at timestamptz, cancel_requested_at timestamptz, pool text, type text,
    seq bigint, id uuid, lane integer, schedule text, execution_key text, tags text[],
    priority smallint, run_at timestamptz, attempt integer, retries integer, losses integer,
    interruptions integer, replays integer, expires_at timestamptz, concurrency_key text,
    created_at timestamptz, created_by text, max_retries bigint, backoff text, timeout_us bigint,
    schedule_uid uuid, label text, occurrence timestamptz, error_class text, error_message text,
    fingerprint text, payload text, next_at timestamptz, walked bigint, floor_lanes integer[],
    floor_ords bigint[]
);

CREATE FUNCTION last_word(p_next_at timestamptz, p_walked bigint, p_floor_lanes integer[],
                          p_floor_ords bigint[]) RETURNS handed LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE h handed;
BEGIN
    h.next_at := p_next_at; h.walked := p_walked;
    h.floor_lanes := p_floor_lanes; h.floor_ords := p_floor_ords;
    RETURN h;
END $$;

-- Claims that stand, in the order in which they were made.
CREATE FUNCTION claims_of(p_ids uuid[]) RETURNS SETOF handed
LANGUAGE sql STABLE ROWS 50 AS $$
    SELECT r.fence, r.claimed_at, r.cancel_requested_at, l.pool, l.type, t.seq, t.id, t.lane,
           t.schedule, t.execution_key, t.tags, t.priority, t.run_at, t.attempt,
           t.retries, t.losses, t.interruptions, t.replays, t.expires_at, t.concurrency_key,
           t.created_at, t.created_by, t.max_retries, t.backoff, t.timeout_us, t.schedule_uid,
           t.label, t.occurrence, t.error_class, t.error_message, t.fingerprint, t.payload,
           NULL::timestamptz, NULL::bigint, NULL::integer[], NULL::bigint[]
    FROM running AS r, LATERAL (SELECT * FROM task WHERE seq = r.seq LIMIT 1) AS t,
         LATERAL (SELECT pool, type FROM lane WHERE id = t.lane LIMIT 1) AS l
    WHERE r.id = ANY(p_ids) ORDER BY r.fence
$$;

-- What still stands of what an earlier call with the same token was given.
CREATE FUNCTION claimed_before(p_worker text, p_token bigint) RETURNS SETOF handed
LANGUAGE sql STABLE ROWS 50 SET search_path = matins, pg_temp AS $$
    SELECT * FROM claims_of(ARRAY(
        SELECT id FROM running WHERE worker = p_worker AND token = p_token))
$$;

-- Writes claims about tasks that are out of line, in order. Answers their ids.
CREATE FUNCTION start(p_seqs bigint[], p_worker text, p_token bigint, p_lease timestamptz,
                      p_now timestamptz) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE v_ids uuid[];
BEGIN
    WITH x AS MATERIALIZED (
        SELECT nextval('fence_seq') AS fence, o.seq
        FROM (SELECT * FROM unnest(p_seqs) WITH ORDINALITY AS u (seq, nth)
              ORDER BY nth OFFSET 0) AS o
    ), r AS (
        INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                             cancel_requested_at, tied)
        SELECT t.id, t.seq, x.fence, p_token, p_worker, t.lane, p_now, p_lease,
               t.cancel_requested_at, is_tied(t.concurrency_key, t.schedule_uid)
        FROM x, LATERAL (SELECT * FROM task WHERE seq = x.seq LIMIT 1) AS t
        RETURNING id
    )
    SELECT array_agg(id) INTO v_ids FROM r;
    RETURN v_ids;
END $$;

-- Whether the end of a run lets others go on, so that it needs ties.
CREATE FUNCTION is_tied(p_concurrency_key text, p_schedule_uid uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_concurrency_key IS NOT NULL OR p_schedule_uid IS NOT NULL
$$;

CREATE FUNCTION forget_expiry(p_seqs bigint[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM expiring WHERE (expires_at, seq) IN (
        SELECT expires_at, seq FROM task WHERE seq = ANY(p_seqs) AND expires_at IS NOT NULL)
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
    IF NOT EXISTS (SELECT 1 FROM setting WHERE scope = 'limit')
       AND NOT EXISTS (SELECT 1 FROM lane WHERE id = ANY(p_lanes) AND quarantine) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT 1 FROM lane WHERE id = ANY(p_lanes) AND quarantine) THEN
        PERFORM tie_quarantine();
        v_busy := EXISTS (SELECT 1 FROM running AS x JOIN lane AS l ON l.id = x.lane
                          WHERE l.quarantine);
    END IF;
    FOR r IN
        SELECT l.*, s.most, s.rate
        FROM (SELECT type, array_agg(id) AS lanes, array_agg(quarantine) AS quarantined
              FROM lane WHERE id = ANY(p_lanes) GROUP BY type) AS l
        LEFT JOIN LATERAL (
            SELECT (value::json ->> 'concurrency')::bigint AS most,
                   value::json ->> 'rate_limit' AS rate
            FROM setting WHERE scope = 'limit' AND name = l.type LIMIT 1) AS s ON true
        WHERE s.most IS NOT NULL OR s.rate IS NOT NULL OR true = ANY(l.quarantined)
        ORDER BY l.type
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
        FOR i IN 1..cardinality(r.lanes) LOOP
            a.lane := r.lanes[i]; a.quarantine := r.quarantined[i];
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
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT l.id FROM lane AS l
        WHERE (p_pool IS NULL OR l.pool = p_pool) AND (p_types IS NULL OR l.type = ANY(p_types))
          AND NOT EXISTS (SELECT 1 FROM setting AS s WHERE s.scope = 'pool' AND s.name = l.pool
                          AND (s.value::json ->> 'paused')::boolean));
END $$;

-- The next due time in some lanes, or an earlier instant to look again.
CREATE FUNCTION next_due(p_lanes integer[], p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        WITH glance AS (
            SELECT run_at, lane FROM scheduled WHERE run_at > p_now ORDER BY run_at, seq LIMIT 64)
        SELECT coalesce(
            (SELECT min(run_at) FROM glance WHERE lane = ANY(p_lanes)),
            (SELECT max(run_at) FROM glance HAVING count(*) = 64)));
END $$;

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
-- `p_floor_*`: where a lane's live rows, and due tasks that wait to be put in line, are known to
-- begin (`floors.rs`); what lies before is not looked at.
--
-- Tasks that nothing has to be asked about are started all at once, up to the first of the others;
-- from there they go one by one. Of a lane whose limit is used up only the first is looked at.
CREATE FUNCTION claim(
    p_worker text, p_pool text, p_types text[], p_max integer, p_token bigint,
    p_lease timestamptz, p_now timestamptz, p_floor_lanes integer[], p_floor_ords bigint[],
    p_floor_due timestamptz
) RETURNS SETOF handed
LANGUAGE plpgsql ROWS 50 SET search_path = matins, pg_temp AS $$
DECLARE
    v_served integer[] := lanes_served(p_pool, p_types); v_all allowance[]; v_spent integer[];
    v_lanes integer[]; v_floors bigint[]; v_plain integer[]; v_plain_floors bigint[];
    v_keyed bigint[]; v_needs integer; v_bar bigint[];
    v_limit integer := least(greatest(p_max * 2, 256), 2000); v_promoted integer;
    v_got integer := 0; v_rest record; v_next timestamptz; v_unfinished boolean;
    v_begin_lanes integer[]; v_begin_ords bigint[]; v_walked bigint;
    v_ids uuid[]; v_seen bigint;
BEGIN
    IF p_max <= 0 OR NOT may_claim(p_worker, p_lease, p_now) THEN RETURN; END IF;
    v_all := allowances(v_served, p_now);
    SELECT array_agg(a.lane) INTO v_spent FROM unnest(v_all) AS a
    WHERE a.room <= 0 OR a.tokens <= 0;
    SELECT array_agg(s.lane), array_agg(coalesce(f.ord, -9223372036854775808))
    INTO v_lanes, v_floors
    FROM unnest(v_served) AS s (lane)
    LEFT JOIN unnest(p_floor_lanes, p_floor_ords) AS f (lane, ord) ON f.lane = s.lane;
    WITH due AS MATERIALIZED (
        SELECT lane, ord, seq, needs FROM scheduled WHERE run_at <= p_now AND run_at >= p_floor_due
        ORDER BY run_at, seq LIMIT v_limit
    ), head AS MATERIALIZED (
        SELECT l.id AS lane, y.* FROM unnest(v_lanes, v_floors) AS l (id, floor), LATERAL (
            SELECT r.ord, r.seq, r.needs FROM ready AS r
            WHERE r.lane = l.id AND r.ord >= l.floor ORDER BY r.ord, r.seq
            LIMIT CASE WHEN l.id = ANY(v_spent) THEN 1 ELSE p_max END) AS y
    ), seen AS (
        SELECT * FROM (SELECT * FROM due UNION ALL SELECT lane, ord, seq, needs FROM head) AS x
        WHERE lane = ANY(v_served) AND (lane = ANY(v_spent)) IS NOT TRUE
    ), first AS (
        SELECT lane, min(ord) AS ord FROM head GROUP BY lane
    )
    SELECT (SELECT max(needs) FROM seen),
           -- Whatever is due is put in line below, of other lanes, too.
           (SELECT array_agg(seq) FROM (SELECT seq, needs FROM due UNION SELECT seq, needs FROM seen)
            AS x WHERE needs >= 2),
           (SELECT ARRAY[ord, seq] FROM seen
            WHERE needs >= 2 OR lane IN (SELECT a.lane FROM unnest(v_all) AS a)
            ORDER BY ord, seq LIMIT 1),
           (SELECT min(rate_opens(a, p_now)) FROM unnest(v_all) AS a JOIN first AS f USING (lane)
            WHERE a.tokens <= 0 AND (a.room <= 0) IS NOT TRUE),
           array_agg(lane), array_agg(ord),
           -(SELECT count(*) FROM due) - (SELECT count(*) FROM head), (SELECT count(*) FROM seen)
    INTO v_needs, v_keyed, v_bar, v_next, v_begin_lanes, v_begin_ords, v_walked, v_seen
    FROM first;
    v_walked := v_walked + pg_stat_get_xact_tuples_returned('ready_pkey'::regclass)
                         + pg_stat_get_xact_tuples_returned('scheduled_pkey'::regclass);
    IF v_keyed IS NOT NULL THEN PERFORM tie_tasks(v_keyed); END IF;
    v_promoted := promote(p_now, v_limit, p_floor_due);
    v_unfinished := v_promoted = v_limit;
    SELECT array_agg(lane) FILTER (WHERE plain), array_agg(floor) FILTER (WHERE plain),
           array_agg(lane), array_agg(floor)
    INTO v_plain, v_plain_floors, v_lanes, v_floors
    FROM (SELECT l.*, l.lane NOT IN (SELECT a.lane FROM unnest(v_all) AS a) AS plain
          FROM unnest(v_lanes, v_floors) AS l (lane, floor)) AS x
    WHERE (lane = ANY(v_spent)) IS NOT TRUE;
    RETURN QUERY SELECT * FROM start_plain(v_plain, v_plain_floors, v_bar, p_max, p_worker,
                                           p_token, p_lease, p_now);
    GET DIAGNOSTICS v_got = ROW_COUNT;
    IF v_got < p_max AND (v_needs > 0 OR v_all IS NOT NULL OR v_unfinished) THEN
        SELECT * INTO v_rest FROM hand_out_rest(v_lanes, v_floors, p_max - v_got, p_now, v_all,
                                                v_unfinished, p_floor_due);
        v_next := least(v_next, v_rest.opening);
        v_unfinished := v_rest.unfinished;
        IF v_rest.seqs <> '{}' THEN
            PERFORM save_rates(v_rest.allowed);
            v_ids := start(v_rest.seqs, p_worker, p_token, p_lease, p_now);
            RETURN QUERY SELECT * FROM claims_of(v_ids);
            v_got := v_got + array_length(v_rest.seqs, 1);
        END IF;
        IF v_unfinished THEN
            v_next := least(v_next, p_now + interval '1 microsecond');
        END IF;
    END IF;
    IF v_got < p_max AND NOT v_unfinished THEN
        v_next := least(v_next, next_due(v_served, p_now));
        -- What another claim looks at in this moment it may leave, and tells nobody.
        IF v_got < v_seen THEN v_next := least(v_next, p_now + interval '20 milliseconds'); END IF;
    END IF;
    RETURN NEXT last_word(v_next, v_walked, v_begin_lanes, v_begin_ords);
END $$;

-- Starts what stands at the heads of some lanes, before a bar, and has no concurrency_key, up to a
-- task that may not start: one that has expired, or whose key was completed.
CREATE FUNCTION start_plain(
    p_lanes integer[], p_floors bigint[], p_bar bigint[], p_max integer, p_worker text,
    p_token bigint, p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed LANGUAGE plpgsql ROWS 50 AS $$
DECLARE
    v_ord bigint := coalesce(p_bar[1], 9223372036854775807);
    v_seq bigint := coalesce(p_bar[2], 9223372036854775807);
BEGIN
    RETURN QUERY
    WITH head AS MATERIALIZED (
        SELECT y.* FROM unnest(p_lanes, p_floors) AS l (id, floor), LATERAL (
            SELECT r.ctid AS at, r.ord, r.seq, r.needs FROM ready AS r
            WHERE r.lane = l.id AND r.ord >= l.floor AND (r.ord, r.seq) < (v_ord, v_seq)
              AND r.needs < 2
            ORDER BY r.ord, r.seq LIMIT p_max FOR UPDATE SKIP LOCKED) AS y
    ), line AS MATERIALIZED (
        SELECT nextval('fence_seq') AS fence, o.*
        FROM (SELECT * FROM head ORDER BY ord, seq LIMIT p_max) AS o
    ), found AS MATERIALIZED (
        SELECT n.fence, n.at, n.ord, n.needs, l.pool, l.type, t.*,
               n.needs > 0 AND coalesce(t.expires_at <= p_now OR (
                   SELECT k.id <> t.id AND k.at IS NOT NULL FROM exec_key AS k
                   WHERE k.type = l.type AND k.key = t.execution_key), false) AS ends
        FROM line AS n, LATERAL (SELECT * FROM task WHERE seq = n.seq LIMIT 1) AS t,
             LATERAL (SELECT pool, type FROM lane WHERE id = t.lane LIMIT 1) AS l
    ), started AS MATERIALIZED (
        SELECT * FROM found
        WHERE fence < coalesce((SELECT min(fence) FROM found WHERE ends), 9223372036854775807)
    ), gone AS (
        DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT at FROM started))
    ), kept AS (
        DELETE FROM expiring WHERE ctid = ANY(ARRAY(
            SELECT e.at FROM started AS s, LATERAL (
                SELECT x.ctid AS at FROM expiring AS x
                WHERE x.expires_at = s.expires_at AND x.seq = s.seq LIMIT 1) AS e
            WHERE s.expires_at IS NOT NULL))
    ), runs AS (
        INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                             cancel_requested_at, tied)
        SELECT id, seq, fence, p_token, p_worker, lane, p_now, p_lease, cancel_requested_at,
               is_tied(concurrency_key, schedule_uid)
        FROM started
    ), counted AS (
        INSERT INTO tally (lane, place, n) SELECT lane, 1, -count(*) FROM started GROUP BY lane
    )
    SELECT s.fence, p_now, s.cancel_requested_at, s.pool, s.type, s.seq, s.id, s.lane,
           s.schedule, s.execution_key, s.tags, s.priority, s.run_at, s.attempt, s.retries,
           s.losses, s.interruptions, s.replays, s.expires_at, s.concurrency_key, s.created_at,
           s.created_by, s.max_retries, s.backoff, s.timeout_us, s.schedule_uid, s.label,
           s.occurrence, s.error_class, s.error_message, s.fingerprint, s.payload,
           NULL::timestamptz, NULL::bigint, NULL::integer[], NULL::bigint[]
    FROM started AS s ORDER BY s.fence;
END $$;

-- The rest of a claim, one task after the other. `unfinished`: there was more to put in line, and
-- then: not everything has been looked at.
CREATE FUNCTION hand_out_rest(
    p_lanes integer[], p_floors bigint[], p_max integer, p_now timestamptz,
    INOUT allowed allowance[], INOUT unfinished boolean, p_floor_due timestamptz,
    OUT seqs bigint[], OUT opening timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_limit integer := least(greatest(p_max * 2, 256), 2000); v_more boolean := unfinished;
    v_promoted integer := 0; v_n integer; v_passed integer := 0; v_again boolean;
BEGIN
    seqs := '{}';
    LOOP
        SELECT * INTO allowed, seqs, v_passed, v_again, opening
        FROM hand_out(p_lanes, p_floors, p_max, p_now, allowed, seqs, v_passed);
        unfinished := false;
        EXIT WHEN array_length(seqs, 1) >= p_max;
        IF v_again THEN
            unfinished := v_passed >= 200;
            EXIT WHEN unfinished;
        ELSIF v_more AND v_promoted < 2000 THEN
            v_n := promote(p_now, v_limit, p_floor_due);
            v_promoted := v_promoted + v_n;
            v_more := v_n = v_limit;
        ELSE
            unfinished := v_more;
            EXIT;
        END IF;
    END LOOP;
END $$;

-- Takes tasks of some lanes out of line until there are `p_max`. `again`: something ended instead
-- of being run, so the lanes must be looked at anew.
CREATE FUNCTION hand_out(
    p_lanes integer[], p_floors bigint[], p_max integer, p_now timestamptz,
    INOUT allowed allowance[], INOUT seqs bigint[], INOUT passed integer,
    OUT again boolean, OUT opening timestamptz
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
    SELECT array_agg(x.seq) INTO v_keyed
    FROM unnest(p_lanes, p_floors) AS l (id, floor), LATERAL (
        SELECT r.seq, r.needs FROM ready AS r WHERE r.lane = l.id AND r.ord >= l.floor
        ORDER BY r.ord, r.seq LIMIT v_left) AS x WHERE x.needs >= 2;
    IF v_keyed IS NOT NULL THEN PERFORM tie_tasks(v_keyed); END IF;
    SELECT array_agg(x.ctid ORDER BY x.ord, x.seq), array_agg(x.lane ORDER BY x.ord, x.seq),
           array_agg(x.ord ORDER BY x.ord, x.seq), array_agg(x.seq ORDER BY x.ord, x.seq),
           array_agg(x.needs ORDER BY x.ord, x.seq)
    INTO v_ctids, v_lane, v_ord, v_seq, v_needs
    FROM (
        SELECT y.* FROM unnest(p_lanes, p_floors) AS l (id, floor), LATERAL (
            SELECT r.ctid, r.lane, r.ord, r.seq, r.needs FROM ready AS r
            WHERE r.lane = l.id AND r.ord >= l.floor
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

-- Starts named tasks that stand in line and that nothing has to be asked about, in the order of the
-- line, up to one that may not start: one that has expired, or whose key was completed.
CREATE FUNCTION start_named(
    p_seqs bigint[], p_lanes integer[], p_max integer, p_worker text, p_token bigint,
    p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed LANGUAGE plpgsql ROWS 50 AS $$
BEGIN
    RETURN QUERY
    WITH head AS MATERIALIZED (
        SELECT r.* FROM unnest(p_seqs) AS u (seq),
            LATERAL (SELECT lane, run_at, priority FROM task WHERE seq = u.seq LIMIT 1) AS t,
            LATERAL (
                SELECT x.ctid AS at, x.ord, x.seq, x.needs FROM ready AS x
                WHERE x.lane = t.lane AND x.ord = order_key(t.run_at, t.priority)
                  AND x.seq = u.seq AND x.needs < 2
                LIMIT 1 FOR UPDATE SKIP LOCKED) AS r
        WHERE t.lane = ANY(p_lanes)
    ), line AS MATERIALIZED (
        SELECT nextval('fence_seq') AS fence, o.*
        FROM (SELECT * FROM head ORDER BY ord, seq LIMIT p_max) AS o
    ), found AS MATERIALIZED (
        SELECT n.fence, n.at, n.ord, n.needs, l.pool, l.type, t.*,
               n.needs > 0 AND coalesce(t.expires_at <= p_now OR (
                   SELECT k.id <> t.id AND k.at IS NOT NULL FROM exec_key AS k
                   WHERE k.type = l.type AND k.key = t.execution_key), false) AS ends
        FROM line AS n, LATERAL (SELECT * FROM task WHERE seq = n.seq LIMIT 1) AS t,
             LATERAL (SELECT pool, type FROM lane WHERE id = t.lane LIMIT 1) AS l
    ), started AS MATERIALIZED (
        SELECT * FROM found
        WHERE fence < coalesce((SELECT min(fence) FROM found WHERE ends), 9223372036854775807)
    ), gone AS (
        DELETE FROM ready WHERE ctid = ANY(ARRAY(SELECT at FROM started))
    ), kept AS (
        DELETE FROM expiring WHERE ctid = ANY(ARRAY(
            SELECT e.at FROM started AS s, LATERAL (
                SELECT x.ctid AS at FROM expiring AS x
                WHERE x.expires_at = s.expires_at AND x.seq = s.seq LIMIT 1) AS e
            WHERE s.expires_at IS NOT NULL))
    ), runs AS (
        INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                             cancel_requested_at, tied)
        SELECT id, seq, fence, p_token, p_worker, lane, p_now, p_lease, cancel_requested_at,
               is_tied(concurrency_key, schedule_uid)
        FROM started
    ), counted AS (
        INSERT INTO tally (lane, place, n) SELECT lane, 1, -count(*) FROM started GROUP BY lane
    )
    SELECT s.fence, p_now, s.cancel_requested_at, s.pool, s.type, s.seq, s.id, s.lane,
           s.schedule, s.execution_key, s.tags, s.priority, s.run_at, s.attempt, s.retries,
           s.losses, s.interruptions, s.replays, s.expires_at, s.concurrency_key, s.created_at,
           s.created_by, s.max_retries, s.backoff, s.timeout_us, s.schedule_uid, s.label,
           s.occurrence, s.error_class, s.error_message, s.fingerprint, s.payload,
           NULL::timestamptz, NULL::bigint, NULL::integer[], NULL::bigint[]
    FROM started AS s ORDER BY s.fence;
END $$;

-- The named tasks, if they are due and nothing else forbids them; wherever they stand in line.
-- Those that nothing has to be asked about are started all at once, the others one by one.
CREATE FUNCTION claim_named(
    p_worker text, p_pool text, p_types text[], p_ids uuid[], p_max integer, p_token bigint,
    p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed
LANGUAGE plpgsql ROWS 10 SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_served integer[]; v_all allowance[]; v_seqs bigint[] := '{}'; v_next timestamptz; w task;
    a allowance; e record; v_again boolean; v_type text; v_due bigint[]; v_seq bigint; u turn;
    v_ids uuid[]; v_tied boolean; v_got integer := 0;
BEGIN
    IF p_max <= 0 OR NOT may_claim(p_worker, p_lease, p_now) THEN RETURN; END IF;
    v_served := lanes_served(p_pool, p_types);
    SELECT array_agg(t.seq), bool_or(t.concurrency_key IS NOT NULL),
           array_agg(DISTINCT t.lane) FILTER (WHERE t.lane = ANY(v_served))
    INTO v_due, v_tied, v_served
    FROM (SELECT DISTINCT id FROM unnest(p_ids) AS u (id)) AS i,
         LATERAL (SELECT seq, concurrency_key, lane FROM task WHERE id = i.id LIMIT 1) AS t;
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
    IF v_all IS NULL AND NOT v_tied THEN
        RETURN QUERY SELECT * FROM start_named(v_due, v_served, p_max, p_worker, p_token, p_lease,
                                               p_now);
        GET DIAGNOSTICS v_got = ROW_COUNT;
    END IF;
    -- Whatever is left is looked at one by one.
    v_again := v_got < least(p_max, cardinality(v_due));
    WHILE v_again LOOP
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
            EXIT WHEN v_got + cardinality(v_seqs) >= p_max;
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
    END LOOP;
    IF v_seqs <> '{}' THEN
        PERFORM save_rates(v_all);
        v_ids := start(v_seqs, p_worker, p_token, p_lease, p_now);
        RETURN QUERY SELECT * FROM claims_of(v_ids);
    END IF;
    RETURN NEXT last_word(v_next, 0, NULL, NULL);
END $$;
