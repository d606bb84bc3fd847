-- Who may work from Redis alone while the database is away, and whose word is needed before Redis
-- may be ignored.
--
-- While the regime has a Redis, pending tasks may be copied there, and a *member* without the
-- database may run them. So who is connected takes a task out of that Redis before it claims it,
-- and says under which generation it did. A change of the regime is made alone
-- (`regime_now` holds the others off until the transaction ends), so no claim straddles one.

CREATE TABLE regime (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    generation  bigint NOT NULL,
    redis       text                          -- NULL: nothing is mirrored under this generation
);
INSERT INTO regime (generation) VALUES (1);

CREATE TABLE member (
    id              uuid PRIMARY KEY,         -- of a process, never used again
    node            text NOT NULL,
    acknowledged    bigint NOT NULL,
    outage_until    timestamptz NOT NULL,     -- by this server's clock
    episode         bigint NOT NULL,          -- its claims of earlier times in the dark are over
    sees            text,                     -- the Redis it sees
    sees_since      timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Runs under a claim that was made in the dark and not handed over: the outage lease of its member
-- covers it.
CREATE TABLE journal_run (
    fence   bigint PRIMARY KEY,
    member  uuid NOT NULL,
    episode bigint NOT NULL
);

-- The regime, which stays as it is until the transaction ends.
CREATE FUNCTION regime_now() RETURNS regime LANGUAGE plpgsql AS $$
DECLARE g regime;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1835103846, 0);
    SELECT * INTO g FROM regime WHERE one;
    RETURN g;
END $$;

-- Whether nobody can work from Redis under an earlier generation any more.
CREATE FUNCTION is_settled(p_generation bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN NOT EXISTS (SELECT 1 FROM member
                       WHERE acknowledged <> p_generation AND outage_until > clock_timestamp());
END $$;

-- Whether pending tasks may be decided about without a word of Redis.
CREATE FUNCTION may_act_alone() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE g regime;
BEGIN
    IF current_setting('matins.word', true) = 'taken' THEN RETURN true; END IF;
    g := regime_now();
    IF g.redis IS NULL THEN RETURN is_settled(g.generation); END IF;
    IF EXISTS (SELECT 1 FROM member WHERE outage_until > clock_timestamp()) THEN
        RAISE EXCEPTION 'other nodes may run tasks from Redis alone (redis_mirror): a node without '
            'it claims, cancels and retries nothing beside them; give all nodes the same '
            'redis_mirror, or stop those that have it' USING ERRCODE = 'MT003';
    END IF;
    RETURN true;
END $$;

-- The Redis that the regime should have: none when somebody sees another one, which does not become
-- this one again, or none for some seconds; a new one when everybody has seen the same for some
-- time, so that one which is emptied again and again is left alone.
CREATE FUNCTION wanted_redis(g regime) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := clock_timestamp(); m record;
    -- Before the first one, none has been lost.
    v_for interval := CASE WHEN g.generation = 1 THEN '0.5 seconds' ELSE '2 seconds' END;
BEGIN
    -- Whoever may still work under an earlier one is waited for.
    IF NOT is_settled(g.generation) THEN RETURN g.redis; END IF;
    SELECT count(*) FILTER (WHERE sees <> g.redis OR (sees IS NULL
                            AND sees_since < v_now - interval '3 seconds')) AS blind,
           count(*) FILTER (WHERE sees IS NULL
                            OR sees_since > v_now - v_for) AS unsure,
           count(DISTINCT sees) AS kinds, min(sees) AS one
    INTO m FROM member WHERE seen_at > v_now - interval '25 seconds';
    IF g.redis IS NOT NULL THEN
        RETURN CASE WHEN m.blind = 0 THEN g.redis END;
    END IF;
    RETURN CASE WHEN m.kinds = 1 AND m.unsure = 0 THEN m.one END;
END $$;

-- A member says what it has acknowledged and which Redis it sees, and is told how things stand.
-- Its outage lease is renewed under the current generation alone (`granted`).
CREATE FUNCTION member_turn(
    p_id uuid, p_node text, p_acknowledged bigint, p_episode bigint, p_sees text,
    p_renews boolean, p_window_us bigint,
    OUT generation bigint, OUT redis text, OUT settled boolean, OUT granted boolean,
    OUT fence bigint
) LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE g regime; v_now timestamptz := clock_timestamp(); v_wanted text; v_until timestamptz;
BEGIN
    INSERT INTO member AS m (id, node, acknowledged, outage_until, episode, sees, sees_since,
                             seen_at)
    VALUES (p_id, p_node, p_acknowledged, '-infinity', p_episode, p_sees, v_now, v_now)
    ON CONFLICT (id) DO UPDATE SET
        -- What was granted under another generation ends with it.
        outage_until = CASE WHEN m.acknowledged = p_acknowledged THEN m.outage_until
                            ELSE '-infinity' END,
        acknowledged = p_acknowledged, episode = greatest(m.episode, p_episode), sees = p_sees,
        sees_since = CASE WHEN m.sees IS NOT DISTINCT FROM p_sees THEN m.sees_since
                          ELSE v_now END,
        seen_at = v_now
    RETURNING m.outage_until INTO v_until;
    SELECT * INTO g FROM regime WHERE one;
    v_wanted := wanted_redis(g);
    IF v_wanted IS DISTINCT FROM g.redis OR (p_renews AND v_until <= v_now) THEN
        -- Also before the first of several leases: who acts alone relies on there being none.
        PERFORM pg_advisory_xact_lock(1835103846, 0);
        SELECT * INTO g FROM regime WHERE one;
        v_wanted := wanted_redis(g);
        IF v_wanted IS DISTINCT FROM g.redis THEN
            UPDATE regime AS r SET generation = r.generation + 1, redis = v_wanted
            RETURNING * INTO g;
        END IF;
    END IF;
    g := regime_now();
    granted := p_renews AND p_acknowledged = g.generation AND p_sees = g.redis;
    granted := coalesce(granted, false);
    IF granted THEN
        UPDATE member SET outage_until = clock_timestamp() + p_window_us * interval '1 microsecond'
        WHERE id = p_id;
    END IF;
    generation := g.generation;
    redis := g.redis;
    settled := is_settled(g.generation);
    SELECT last_value INTO fence FROM fence_seq;
    DELETE FROM member WHERE greatest(outage_until, seen_at) < v_now - interval '1 day';
    DELETE FROM journal_run AS j
    WHERE NOT EXISTS (SELECT 1 FROM running AS r WHERE r.fence = j.fence);
END $$;

-- A process goes away with nothing of the dark left.
CREATE FUNCTION member_leave(p_id uuid) RETURNS void
LANGUAGE sql SET search_path = matins, pg_temp AS $$
    DELETE FROM member WHERE id = p_id
$$;

-- A person says that a node is dead, or what was a node of that name before. 0 nothing is known of
-- it, 1 it was here a moment ago, 2 nobody waits for it any more.
CREATE FUNCTION member_forget(p_node text) RETURNS integer
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    DELETE FROM member
    WHERE node = p_node AND seen_at < clock_timestamp() - interval '15 seconds';
    IF FOUND THEN RETURN 2; END IF;
    RETURN CASE WHEN EXISTS (SELECT 1 FROM member WHERE node = p_node) THEN 1 ELSE 0 END;
END $$;

-- Of announcements (member, colon, episode), those that hold nobody up.
CREATE FUNCTION announcements_gone(p_announced text[]) RETURNS text[]
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(array_agg(a), '{}') FROM unnest(p_announced) AS a
    WHERE NOT EXISTS (
        SELECT 1 FROM member AS m
        WHERE m.id::text = split_part(a, ':', 1) AND m.episode <= split_part(a, ':', 2)::bigint
          AND m.outage_until > clock_timestamp())
$$;

-- The regime, for a claim that follows in this transaction and is committed when what it handed out
-- was taken in that Redis. `ready`: the generation is settled, and the member has acknowledged it.
-- `gone`: of the announcements, those that hold nobody up. What such a claim ends because it has
-- expired, or because its key was completed, is never in Redis.
CREATE FUNCTION hold_claim(p_member uuid, p_announced text[],
    OUT generation bigint, OUT redis text, OUT ready boolean, OUT gone text[]
) LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE g regime := regime_now();
BEGIN
    generation := g.generation;
    redis := g.redis;
    ready := is_settled(g.generation) AND (p_member IS NULL OR EXISTS (
        SELECT 1 FROM member WHERE id = p_member AND acknowledged = g.generation));
    gone := announcements_gone(p_announced);
    IF ready AND redis IS NOT NULL THEN PERFORM set_config('matins.word', 'taken', true); END IF;
END $$;

-- Those of the tasks that stand as they were when they were taken, under that generation. They
-- stay so until the transaction ends, and may be decided about.
CREATE FUNCTION taken(p_generation bigint, p_ids uuid[], p_attempts integer[]) RETURNS uuid[]
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_ids uuid[];
BEGIN
    IF (regime_now()).generation <> p_generation THEN RETURN '{}'; END IF;
    PERFORM set_config('matins.word', 'taken', true);
    SELECT array_agg(t.id) INTO v_ids FROM unnest(p_ids, p_attempts) AS u (id, attempt),
        LATERAL (SELECT id FROM task WHERE id = u.id AND attempt = u.attempt LIMIT 1) AS t;
    RETURN coalesce(v_ids, '{}');
END $$;

CREATE FUNCTION claim_taken(
    p_generation bigint, p_attempts integer[], p_worker text, p_pool text, p_types text[],
    p_ids uuid[], p_max integer, p_token bigint, p_lease timestamptz, p_now timestamptz
) RETURNS SETOF handed
LANGUAGE plpgsql ROWS 10 SET search_path = matins, pg_temp AS $$
DECLARE h handed; v_ids uuid[] := taken(p_generation, p_ids, p_attempts);
BEGIN
    IF v_ids = '{}' THEN RETURN; END IF;
    FOR h IN SELECT * FROM claim_named(p_worker, p_pool, p_types, v_ids, p_max, p_token, p_lease,
                                       p_now) LOOP
        IF h.fence IS NOT NULL AND h.attempt <> p_attempts[array_position(p_ids, h.id)] THEN
            RAISE EXCEPTION 'task % has moved on since it was taken', h.id
            USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN NEXT h;
    END LOOP;
END $$;

-- Tasks that may be mirrored, soonest first: those that can be judged without the database. No key,
-- no expiry, no schedule, no limit of its type, not in quarantine.
CREATE FUNCTION mirror_window(p_horizon timestamptz, p_limit integer,
    OUT id uuid, OUT attempt integer, OUT bytes integer
) RETURNS SETOF record LANGUAGE sql STABLE ROWS 1000 SET search_path = matins, pg_temp AS $$
    WITH open AS (
        SELECT l.id FROM lane AS l WHERE NOT l.quarantine AND NOT EXISTS (
            SELECT 1 FROM setting AS s WHERE s.scope = 'limit' AND s.name = l.type
              AND (s.value::json ->> 'concurrency' IS NOT NULL
                   OR s.value::json ->> 'rate_limit' IS NOT NULL))
    ), waits AS (
        (SELECT r.seq, r.ord FROM open AS o, LATERAL (
            SELECT x.seq, x.ord, x.needs FROM ready AS x WHERE x.lane = o.id
            ORDER BY x.ord, x.seq LIMIT p_limit) AS r
         WHERE r.needs = 0 ORDER BY r.ord, r.seq LIMIT p_limit)
        UNION ALL
        (SELECT s.seq, 9223372036854775807 FROM scheduled AS s
         WHERE s.run_at <= p_horizon AND s.needs = 0 AND s.lane IN (SELECT o.id FROM open AS o)
         ORDER BY s.run_at, s.seq LIMIT p_limit)
    )
    SELECT t.id, t.attempt, octet_length(t.payload) + 600
    FROM waits AS w, LATERAL (SELECT * FROM task WHERE seq = w.seq LIMIT 1) AS t
    WHERE t.schedule_uid IS NULL ORDER BY w.ord, t.run_at, t.seq LIMIT p_limit
$$;

-- The first stored claims of the journal are told apart by their fences.
CREATE FUNCTION fence_above(p_fence bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1835103846, 1);
    IF p_fence > (SELECT last_value FROM fence_seq) + (1::bigint << 46) THEN
        RAISE EXCEPTION 'fence % was never handed out', p_fence USING ERRCODE = 'check_violation';
    END IF;
    PERFORM setval('fence_seq', p_fence) FROM fence_seq WHERE last_value < p_fence;
END $$;

-- Attempts of a task that ended in Redis, out of sight: a later claim tells of them by its counts.
-- Whose they were is not known; a claim of theirs that comes yet says so.
CREATE FUNCTION add_unseen(
    t task, p_first integer, p_last integer, p_at timestamptz, p_retries integer,
    p_losses integer, p_interruptions integer
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO attempt (seq, number, worker, started_at, finished_at, outcome)
    SELECT t.seq, n, '', p_at, p_at, CASE
        WHEN n - p_first < p_retries - t.retries THEN 'failed'
        WHEN n - p_first < p_retries - t.retries + p_losses - t.losses THEN 'lost'
        WHEN n - p_first < p_retries - t.retries + p_losses - t.losses
                           + p_interruptions - t.interruptions THEN 'interrupted'
        ELSE 'released' END
    FROM generate_series(p_first, p_last) AS n
$$;

-- Makes a task one that waits after so many attempts, because that is what it was in Redis. NULL:
-- somebody else has gone on with it.
CREATE FUNCTION bring_up(
    t task, p_attempts integer, p_at timestamptz, p_retries integer, p_losses integer,
    p_interruptions integer
) RETURNS task LANGUAGE plpgsql AS $$
DECLARE r running; v_runs boolean;
BEGIN
    IF t.id IS NULL OR t.state <> 0 THEN RETURN NULL; END IF;
    SELECT * INTO r FROM running WHERE id = t.id FOR UPDATE;
    v_runs := FOUND;
    IF t.attempt + v_runs::integer > p_attempts THEN RETURN NULL; END IF;
    IF v_runs THEN
        -- It ended in Redis; what became of it comes later, or never.
        DELETE FROM journal_run WHERE fence = r.fence;
        IF NOT FOUND THEN RETURN NULL; END IF;
        DELETE FROM running WHERE id = t.id;
    ELSIF NOT leave(t) THEN
        RAISE EXCEPTION 'task % moves while the journal is replayed', t.id
        USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM add_unseen(t, t.attempt + 1, p_attempts, p_at, p_retries, p_losses, p_interruptions);
    IF v_runs THEN
        UPDATE attempt SET worker = r.worker, started_at = r.claimed_at
        WHERE seq = t.seq AND number = t.attempt + 1;
    END IF;
    UPDATE task SET attempt = p_attempts, retries = p_retries, losses = p_losses,
        interruptions = p_interruptions
    WHERE seq = t.seq RETURNING * INTO t;
    RETURN t;
END $$;

-- A claim made in the dark, of a task that is stored. 0 known, 1 applied, 2 somebody else had the
-- task: it changes nothing.
CREATE FUNCTION replay_claim(
    p_entry uuid, p_at timestamptz, p_id uuid, p_attempt integer, p_fence bigint, p_token bigint,
    p_worker text, p_member uuid, p_episode bigint, p_retries integer, p_losses integer,
    p_interruptions integer
) RETURNS integer LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE t task;
BEGIN
    INSERT INTO journal_entry VALUES (p_entry, p_at) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 0; END IF;
    PERFORM fence_above(p_fence);
    t := lock_task(p_id);
    UPDATE attempt SET worker = p_worker, started_at = least(p_at, finished_at)
    WHERE number = p_attempt AND worker = '' AND seq = coalesce(t.seq,
        (SELECT seq FROM history WHERE id = p_id LIMIT 1));
    IF FOUND THEN RETURN 1; END IF;
    t := bring_up(t, p_attempt - 1, p_at, p_retries, p_losses, p_interruptions);
    IF t.id IS NULL THEN RETURN 2; END IF;
    INSERT INTO running (id, seq, fence, token, worker, lane, claimed_at, lease_until,
                         cancel_requested_at, tied)
    VALUES (t.id, t.seq, p_fence, p_token, p_worker, t.lane, p_at, '-infinity', NULL,
            is_tied(t.concurrency_key, t.schedule_uid));
    INSERT INTO journal_run VALUES (p_fence, p_member, p_episode);
    RETURN 1;
END $$;

-- A task was cancelled in the dark, after so many attempts: it waited, or that attempt ran. 0 known,
-- 1 applied, 2 somebody else had the task: it changes nothing.
CREATE FUNCTION replay_cancel(
    p_entry uuid, p_at timestamptz, p_id uuid, p_runs boolean, p_attempt integer,
    p_retries integer, p_losses integer, p_interruptions integer, p_who text, p_reason text
) RETURNS integer LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE t task;
BEGIN
    INSERT INTO journal_entry VALUES (p_entry, p_at) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN 0; END IF;
    t := lock_task(p_id);
    IF p_runs THEN
        -- Whoever runs it has heard of it; it may have ended since.
        UPDATE running SET cancel_requested_at = coalesce(cancel_requested_at, p_at)
        WHERE id = p_id AND t.attempt + 1 = p_attempt;
        PERFORM note_act(p_who, 'task.cancel', p_id::text, p_reason, p_at);
        RETURN 1;
    END IF;
    t := bring_up(t, p_attempt, p_at, p_retries, p_losses, p_interruptions);
    IF t.id IS NULL THEN RETURN 2; END IF;
    PERFORM cancel_left(t, 'cancelled', p_at);
    PERFORM note_act(p_who, 'task.cancel', p_id::text, p_reason, p_at);
    RETURN 1;
END $$;

CREATE FUNCTION replay_pause(p_entry uuid, p_at timestamptz, p_pool text, p_who text, p_reason text)
RETURNS void LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
DECLARE v_paused jsonb := jsonb_build_object('paused', true, 'note', p_reason);
BEGIN
    INSERT INTO journal_entry VALUES (p_entry, p_at) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN; END IF;
    INSERT INTO setting AS s (scope, name, value)
    VALUES ('pool', p_pool, (v_paused || jsonb '{"size": null}')::text)
    ON CONFLICT (scope, name) DO UPDATE SET value = (s.value::jsonb || v_paused)::text;
    PERFORM note_act(p_who, 'pool.pause', p_pool, p_reason, p_at);
END $$;

-- Runs that were detached in Redis are ordinary ones now, with leases of their own.
CREATE FUNCTION attach_runs(p_fences bigint[], p_lease timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = matins, pg_temp AS $$
BEGIN
    DELETE FROM journal_run WHERE fence = ANY(p_fences);
    UPDATE running SET lease_until = p_lease WHERE fence = ANY(p_fences);
END $$;

-- Whether the outage lease of its member covers a run.
CREATE FUNCTION runs_in_the_dark(p_fence bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = matins, pg_temp AS $$
    SELECT EXISTS (SELECT 1 FROM journal_run AS j JOIN member AS m ON m.id = j.member
                   WHERE j.fence = p_fence AND m.episode <= j.episode
                     AND m.outage_until > clock_timestamp())
$$;

-- Whether it may be in the mirror. Tasks of schedules get there when they are started in the dark.
CREATE FUNCTION may_be_mirrored(t task) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT t.state = 0 AND NOT t.held AND t.execution_key IS NULL
       AND t.concurrency_key IS NULL AND t.expires_at IS NULL
$$;

-- Of some tasks, those that wait and may be in the mirror. The last row has the regime alone.
-- `ready`: it is settled.
CREATE FUNCTION waiting_tasks(p_announced text[], p_ids uuid[],
    OUT id uuid, OUT attempt integer, OUT generation bigint, OUT redis text, OUT gone text[],
    OUT ready boolean
) RETURNS SETOF record LANGUAGE plpgsql ROWS 10 SET search_path = matins, pg_temp AS $$
#variable_conflict use_column
DECLARE g regime := regime_now();
BEGIN
    generation := g.generation;
    redis := g.redis;
    gone := announcements_gone(p_announced);
    ready := is_settled(g.generation);
    -- In their order, and each by its index, whatever the statistics say.
    RETURN QUERY SELECT t.id, t.attempt, generation, redis, gone, ready
    FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM task WHERE id = u.id LIMIT 1) AS t
    WHERE may_be_mirrored(t)
      AND (SELECT r.id FROM running AS r WHERE r.id = t.id LIMIT 1) IS NULL;
    id := NULL; attempt := NULL;
    RETURN NEXT;
END $$;

-- Of some tasks, those that wait and may be in the mirror, whole.
CREATE FUNCTION mirrored_tasks(p_ids uuid[]) RETURNS SETOF task_full
LANGUAGE sql STABLE ROWS 100 SET search_path = matins, pg_temp AS $$
    SELECT NULL::bigint, NULL::bigint, NULL::text, NULL::timestamptz, NULL::timestamptz,
           l.pool, l.type, t.*
    FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM task WHERE id = u.id LIMIT 1) AS t
    JOIN lane AS l ON l.id = t.lane
    WHERE may_be_mirrored(t)
      AND (SELECT r.id FROM running AS r WHERE r.id = t.id LIMIT 1) IS NULL
$$;

-- A pending task is decided about by a person: nobody may be running it in the dark.
CREATE FUNCTION must_not_be_dark(t task) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF may_be_mirrored(t) AND NOT may_act_alone() THEN
        RAISE EXCEPTION 'nodes are agreeing on who may work from Redis; try again'
        USING ERRCODE = 'MT005';
    END IF;
END $$;

-- The head of each pool's line, and what is due soonest after it; and, without a task, each pool with
-- how many of its tasks have a place that depends on other tasks, as far as was looked. By index,
-- whatever the statistics say.
CREATE FUNCTION hint_window(p_limit bigint, p_tied bigint,
    OUT id uuid, OUT attempt integer, OUT seq bigint, OUT priority smallint, OUT pool text,
    OUT type text, OUT run_at timestamptz, OUT tied boolean, OUT later boolean
) RETURNS SETOF record LANGUAGE sql STABLE ROWS 1000 SET search_path = matins, pg_temp AS $$
    WITH tied AS MATERIALIZED (
        (SELECT lane FROM slot LIMIT p_tied)
        UNION ALL
        (SELECT t.lane FROM (SELECT seq FROM schedule_live WHERE held LIMIT p_tied) AS h,
             LATERAL (SELECT lane FROM task WHERE seq = h.seq LIMIT 1) AS t)
    )
    SELECT NULL::uuid, NULL::integer, coalesce(n.n, 0)::bigint, NULL::smallint, p.pool, NULL::text,
           NULL::timestamptz, NULL::boolean, NULL::boolean
    FROM (SELECT DISTINCT pool FROM lane) AS p
    LEFT JOIN (SELECT l.pool, count(*) AS n FROM tied JOIN lane AS l ON l.id = tied.lane
               GROUP BY l.pool) AS n ON n.pool = p.pool
    UNION ALL
    SELECT t.id, t.attempt, t.seq, t.priority, p.pool, r.type, t.run_at, r.needs >= 2, false
    FROM (SELECT DISTINCT pool FROM lane) AS p, LATERAL (
        SELECT x.seq, x.needs, l.type FROM lane AS l, LATERAL (
            SELECT y.ord, y.seq, y.needs FROM ready AS y WHERE y.lane = l.id
            ORDER BY y.ord, y.seq LIMIT p_limit) AS x
        WHERE l.pool = p.pool ORDER BY x.ord, x.seq LIMIT p_limit) AS r,
        LATERAL (SELECT * FROM task WHERE seq = r.seq LIMIT 1) AS t
    UNION ALL
    SELECT t.id, t.attempt, t.seq, t.priority, l.pool, l.type, t.run_at, s.needs >= 2, true
    FROM (SELECT * FROM scheduled ORDER BY run_at, seq LIMIT p_limit) AS s,
        LATERAL (SELECT * FROM task WHERE seq = s.seq LIMIT 1) AS t
    JOIN lane AS l ON l.id = t.lane
$$;

-- Where some tasks wait, of those that are pending.
CREATE FUNCTION hint_places(p_ids uuid[],
    OUT id uuid, OUT attempt integer, OUT seq bigint, OUT priority smallint, OUT pool text,
    OUT type text, OUT run_at timestamptz, OUT tied boolean, OUT later boolean
) RETURNS SETOF record LANGUAGE sql STABLE ROWS 100 SET search_path = matins, pg_temp AS $$
    SELECT t.id, t.attempt, t.seq, t.priority, l.pool, l.type, t.run_at,
           t.held OR t.concurrency_key IS NOT NULL,
           EXISTS (SELECT 1 FROM scheduled AS s WHERE s.run_at = t.run_at AND s.seq = t.seq)
    FROM unnest(p_ids) AS u (id), LATERAL (SELECT * FROM task WHERE id = u.id LIMIT 1) AS t
    JOIN lane AS l ON l.id = t.lane
    WHERE t.state = 0 AND (SELECT r.id FROM running AS r WHERE r.id = t.id LIMIT 1) IS NULL
$$;
