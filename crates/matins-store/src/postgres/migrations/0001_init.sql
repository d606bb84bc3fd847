-- Shape of the store in PostgreSQL. The twin of the SQLite schema, with these differences:
--
-- * Tasks that have ended for good (completed, cancelled) move to `history`, which is
--   partitioned by day and pruned by dropping partitions. Open tasks and failed ones stay.
-- * How many tasks are in which place is not a counter that every commit would queue for, but a
--   list of changes (`tally`) that is summed when somebody asks and folded now and then.
-- * What an enqueue, a claim or an end does is a function (next migration), so that any
--   language can do it within its own transaction, in one round trip.
--
-- An open task (state 0) is in exactly one place: `ready`, `scheduled`, parked (`slot`), held
-- (`task.held`) or `running`. Claims do not touch the wide row.
--
-- Text columns hold any character: U+0000, which PostgreSQL cannot store, is written by the
-- client as U+F8FF U+0030, and U+F8FF itself as U+F8FF U+0031.

CREATE TABLE meta (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    store_id    uuid NOT NULL
);

CREATE SEQUENCE fence_seq AS bigint;
CREATE SEQUENCE task_seq AS bigint;         -- order of acceptance

-- One line of tasks.
CREATE TABLE lane (
    id          integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    pool        text NOT NULL,
    type        text NOT NULL,
    quarantine  boolean NOT NULL,
    UNIQUE (pool, type, quarantine)
);
CREATE INDEX lane_type ON lane (type);

-- Changes in the number of tasks of a lane in a place. Places: 1 ready, 2 later, 3 parked,
-- 4 held, 6 completed, 7 failed, 8 cancelled, 9 dead (of the failed, those that wait for a
-- person). What runs is counted where it is.
CREATE TABLE tally (
    lane        integer NOT NULL,
    place       smallint NOT NULL,
    n           bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- The last attempt lies in the task's own row (`outcome` is set); earlier ones, and the last one
-- while the task is open again, lie in `attempt`.
CREATE TABLE task (
    seq                 bigint PRIMARY KEY DEFAULT nextval('task_seq'),
    id                  uuid NOT NULL,
    state               smallint NOT NULL DEFAULT 0, -- 0 open, 2 completed, 3 failed, 4 cancelled
    lane                integer NOT NULL,
    schedule            text,
    execution_key       text,
    tags                text[],
    priority            smallint NOT NULL,
    run_at              timestamptz NOT NULL,
    held                boolean NOT NULL,
    attempt             integer NOT NULL DEFAULT 0, -- attempts that have ended
    retries             integer NOT NULL DEFAULT 0,
    losses              integer NOT NULL DEFAULT 0,
    interruptions       integer NOT NULL DEFAULT 0,
    replays             integer NOT NULL DEFAULT 0,
    expires_at          timestamptz,
    concurrency_key     text,
    created_at          timestamptz NOT NULL,
    created_by          text NOT NULL,
    max_retries         bigint,
    backoff             text,
    timeout_us          bigint,               -- -1: none
    schedule_uid        uuid,
    label               text,
    occurrence          timestamptz,
    started_at          timestamptz,
    finished_at         timestamptz,
    cancel_requested_at timestamptz,
    cancel_reason       text,
    deduplicated        boolean NOT NULL DEFAULT false,
    result_dropped      bigint,
    dismissed           text,                 -- JSON
    worker              text,
    outcome             text,
    error_class         text,
    error_message       text,
    fingerprint         text,
    exit_code           integer,
    http_status         integer,
    output              bytea,
    output_dropped      bigint,
    output_gap          bigint,
    result              text,
    payload             text NOT NULL
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX task_id ON task (id);
CREATE INDEX task_schedule ON task (schedule, seq) WHERE schedule IS NOT NULL;

-- Tasks that have ended for good, by the day (UTC) on which they ended.
CREATE TABLE history (LIKE task) PARTITION BY RANGE (finished_at);
CREATE INDEX history_id ON history (id);
CREATE INDEX history_seq ON history (seq);
CREATE INDEX history_ended ON history (state, finished_at);
CREATE INDEX history_schedule ON history (schedule, seq) WHERE schedule IS NOT NULL;
CREATE TABLE history_other PARTITION OF history DEFAULT;

CREATE TABLE attempt (
    seq             bigint NOT NULL,
    number          integer NOT NULL,
    worker          text NOT NULL,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL,
    outcome         text NOT NULL,
    error_class     text,
    error_message   text,
    fingerprint     text,
    exit_code       integer,
    http_status     integer,
    output          bytea,
    output_dropped  bigint,
    output_gap      bigint,
    PRIMARY KEY (seq, number)
);

-- Due and not parked, in the order of its lane. A claim must look at a task before it starts it
-- when it `needs` that: 1 it has a key or expires, 2 it has a concurrency_key.
CREATE TABLE ready (
    lane    integer NOT NULL,
    ord     bigint NOT NULL,
    seq     bigint NOT NULL,
    needs   smallint NOT NULL,
    PRIMARY KEY (lane, ord, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- Not due when it was put here. Claims move what has become due to `ready` or `slot`.
CREATE TABLE scheduled (
    run_at  timestamptz NOT NULL,
    seq     bigint NOT NULL,
    lane    integer NOT NULL,
    ord     bigint NOT NULL,
    needs   smallint NOT NULL,
    PRIMARY KEY (run_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

CREATE TABLE running (
    id                  uuid PRIMARY KEY,
    seq                 bigint NOT NULL,
    fence               bigint NOT NULL,
    token               bigint NOT NULL,
    worker              text NOT NULL,
    lane                integer NOT NULL,
    claimed_at          timestamptz NOT NULL,
    lease_until         timestamptz,          -- NULL: the worker's lease covers it
    cancel_requested_at timestamptz,
    tied                boolean NOT NULL      -- has a concurrency_key or a schedule
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX running_asked ON running (worker) WHERE cancel_requested_at IS NOT NULL;

-- Pending tasks that expire.
CREATE TABLE expiring (
    expires_at  timestamptz NOT NULL,
    seq         bigint NOT NULL,
    PRIMARY KEY (expires_at, seq)
);

-- Uniqueness of keys and ledger in one: the live task of a key (`at` is NULL), or the one that
-- completed, with its result.
CREATE TABLE exec_key (
    type    text NOT NULL,
    key     text NOT NULL,
    id      uuid NOT NULL,
    at      timestamptz,
    result  text,
    PRIMARY KEY (type, key)
) WITH (fillfactor = 70);
CREATE INDEX exec_key_at ON exec_key (at) WHERE at IS NOT NULL;

-- Pending tasks in line that have a concurrency_key. Stage 0: in `ready`, `ord` is its place
-- there. Parked: stage 1 was in line when its key last took turns (`ord` is -priority), stage 2
-- came later (`ord` is its own order).
CREATE TABLE slot (
    type        text NOT NULL,
    key         text NOT NULL,
    stage       smallint NOT NULL,
    lane        integer NOT NULL,
    ord         bigint NOT NULL,
    seq         bigint NOT NULL,
    priority    smallint NOT NULL,
    run_at      timestamptz NOT NULL,
    needs       smallint NOT NULL,
    PRIMARY KEY (type, key, stage, lane, ord, seq)
);

-- Keys whose tasks have run.
CREATE TABLE turn (
    type    text NOT NULL,
    key     text NOT NULL,
    running integer NOT NULL,
    freed   timestamptz,                      -- when a slot of the saturated key was last freed
    PRIMARY KEY (type, key)
) WITH (fillfactor = 70);

-- Live tasks of a schedule.
CREATE TABLE schedule_live (
    schedule_uid    uuid NOT NULL,
    held            boolean NOT NULL,
    seq             bigint NOT NULL,
    PRIMARY KEY (schedule_uid, held, seq)
);

-- Dead letters since the last completion, where there are any.
CREATE TABLE schedule_failures (
    schedule_uid    uuid PRIMARY KEY,
    count           integer NOT NULL
);

-- Failed tasks, with what filters and groups ask for.
CREATE TABLE dead_letter (
    seq             bigint PRIMARY KEY,
    failed_at       timestamptz NOT NULL,
    lane            integer NOT NULL,
    schedule        text,
    fingerprint     text NOT NULL,
    tags            text[],
    execution_key   text,
    dismissed_at    timestamptz
);
CREATE INDEX dead_letter_time ON dead_letter (failed_at, seq) WHERE dismissed_at IS NULL;
CREATE INDEX dead_letter_group ON dead_letter (fingerprint, failed_at, seq)
    WHERE dismissed_at IS NULL;
CREATE INDEX dead_letter_key ON dead_letter (execution_key) WHERE execution_key IS NOT NULL;
CREATE INDEX dead_letter_dismissed ON dead_letter (dismissed_at) WHERE dismissed_at IS NOT NULL;

CREATE TABLE schedule (
    name        text COLLATE "C" PRIMARY KEY,
    uid         uuid NOT NULL,
    rev         bigint NOT NULL,
    next_due    timestamptz,                  -- NULL unless it is active
    state       text NOT NULL,                -- JSON
    decided     bigint NOT NULL,              -- occurrences that its balance counts
    unrecorded  bigint NOT NULL               -- of these, without a record: pruned, or imported
) WITH (fillfactor = 70);
CREATE INDEX schedule_due ON schedule (next_due, name) WHERE next_due IS NOT NULL;
CREATE INDEX schedule_uid ON schedule (uid);

CREATE TABLE occurrence (
    number          bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    schedule_uid    uuid NOT NULL,
    schedule        text NOT NULL,
    label           text NOT NULL,
    label_to        text,
    count           bigint NOT NULL,
    kind            text NOT NULL,
    time            timestamptz NOT NULL,
    outcome         text NOT NULL,
    reason          text,
    task_id         uuid,
    fired_at        timestamptz
);
CREATE UNIQUE INDEX occurrence_label ON occurrence (schedule_uid, label)
    WHERE kind = 'scheduled';
CREATE INDEX occurrence_schedule ON occurrence (schedule, number);
CREATE INDEX occurrence_fired ON occurrence (schedule_uid, time) WHERE outcome = 'fired';
CREATE INDEX occurrence_age ON occurrence (coalesce(fired_at, time));

CREATE TABLE worker (
    name        text COLLATE "C" PRIMARY KEY,
    node_id     text NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    draining    boolean NOT NULL,
    remote      boolean NOT NULL,
    pools       text NOT NULL,                -- JSON: [[pool, slots], …]
    types       text,                         -- JSON array; NULL: any
    retired     boolean NOT NULL DEFAULT false,
    guarded     boolean NOT NULL DEFAULT false -- a session of its process holds a lock on its name
) WITH (fillfactor = 50);

CREATE TABLE setting (
    scope   text NOT NULL,                    -- frozen, pool, limit, route, size
    name    text NOT NULL,
    value   text NOT NULL,                    -- JSON; of a route, the pool
    PRIMARY KEY (scope, name)
);

-- State of each type's rate limit.
CREATE TABLE rate (
    type        text PRIMARY KEY,
    spent_until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE audit (
    number  bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    time    timestamptz NOT NULL,
    who     text NOT NULL,
    action  text NOT NULL,
    target  text NOT NULL,
    reason  text
);
CREATE INDEX audit_time ON audit (time);

CREATE TABLE operation (
    id          uuid PRIMARY KEY,
    running     boolean NOT NULL,
    created_at  timestamptz NOT NULL,
    finished_at timestamptz,
    value       text NOT NULL,                -- JSON, without the payload
    payload     text                          -- byte for byte
);
CREATE INDEX operation_running ON operation (created_at) WHERE running;
CREATE INDEX operation_over ON operation (finished_at, id) WHERE NOT running;

CREATE TABLE token (
    name    text COLLATE "C" PRIMARY KEY,
    value   text NOT NULL                     -- JSON
);

CREATE TABLE note (
    key     text PRIMARY KEY,
    value   text NOT NULL
);

-- Any task, with its names and what is known of its run. Columns of the task come last, so that
-- one added to it moves none.
CREATE VIEW task_full AS
SELECT r.fence, r.token, r.worker AS run_worker, r.claimed_at,
       r.cancel_requested_at AS run_cancel_requested_at, l.pool, l.type, t.*
FROM task AS t JOIN lane AS l ON l.id = t.lane LEFT JOIN running AS r ON r.id = t.id
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, l.pool, l.type, h.*
FROM history AS h JOIN lane AS l ON l.id = h.lane;
