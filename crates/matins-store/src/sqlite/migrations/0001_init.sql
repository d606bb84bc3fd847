-- Shape of the store. Times are microseconds since 1970 UTC. Names of pools, types, workers and
-- accounts are interned in `name`, pairs of pool and type in `lane`.
--
-- An open task (state 0) is in exactly one place: `ready`, `scheduled`, parked (`slot`), held
-- (`task.held`) or `running`. The wide `task` row is written when the task is accepted, when an
-- attempt did not end it, and when it ends; claims do not touch it.

CREATE TABLE meta (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    store_id    BLOB NOT NULL,
    fence       INTEGER NOT NULL,             -- fence of the claim made last
    swept_at    INTEGER NOT NULL,             -- keys of tasks that completed up to here
    swept_seq   INTEGER NOT NULL              -- are over, although the rows may be there
) STRICT;

CREATE TABLE name (
    id          INTEGER PRIMARY KEY,
    text        TEXT NOT NULL UNIQUE
) STRICT;

-- One line of tasks, and how many tasks it has in each place. Kept with every change, so that
-- figures are read and never counted.
CREATE TABLE lane (
    id          INTEGER PRIMARY KEY,
    pool        INTEGER NOT NULL,
    type        INTEGER NOT NULL,
    quarantine  INTEGER NOT NULL,
    ready       INTEGER NOT NULL DEFAULT 0,
    later       INTEGER NOT NULL DEFAULT 0,
    parked      INTEGER NOT NULL DEFAULT 0,
    held        INTEGER NOT NULL DEFAULT 0,
    running     INTEGER NOT NULL DEFAULT 0,
    completed   INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    cancelled   INTEGER NOT NULL DEFAULT 0,
    dead        INTEGER NOT NULL DEFAULT 0,   -- of the failed ones, those that wait for a person
    UNIQUE (pool, type, quarantine)
) STRICT;

-- What lists filter by comes first, what may be large last: columns after a large one are slow
-- to reach. The last attempt lies in the task's own row (`outcome` is set); earlier ones, and
-- the last one while the task is open again, lie in `attempt`.
CREATE TABLE task (
    seq                 INTEGER PRIMARY KEY,  -- order of acceptance
    id                  BLOB NOT NULL,
    state               INTEGER NOT NULL,     -- 0 open, 2 completed, 3 failed, 4 cancelled
    lane                INTEGER NOT NULL,
    schedule            INTEGER,
    execution_key       TEXT,
    tags                TEXT,                 -- JSON array
    priority            INTEGER NOT NULL,
    run_at              INTEGER NOT NULL,
    held                INTEGER NOT NULL,
    attempt             INTEGER NOT NULL,     -- attempts that have ended; a running one is next
    retries             INTEGER NOT NULL DEFAULT 0,
    losses              INTEGER NOT NULL DEFAULT 0,
    interruptions       INTEGER NOT NULL DEFAULT 0,
    replays             INTEGER NOT NULL DEFAULT 0,
    expires_at          INTEGER,
    concurrency_key     TEXT,
    created_at          INTEGER NOT NULL,
    created_by          INTEGER NOT NULL,
    max_retries         INTEGER,
    backoff             TEXT,
    timeout             INTEGER,              -- -1: none
    schedule_uid        BLOB,
    label               TEXT,
    occurrence          INTEGER,
    started_at          INTEGER,
    finished_at         INTEGER,
    cancel_requested_at INTEGER,
    cancel_reason       TEXT,
    deduplicated        INTEGER NOT NULL DEFAULT 0,
    result_dropped      INTEGER,
    dismissed           TEXT,                 -- JSON
    worker              INTEGER,
    outcome             TEXT,
    error_class         TEXT,
    error_message       TEXT,
    fingerprint         TEXT,
    exit_code           INTEGER,
    http_status         INTEGER,
    output              BLOB,
    output_dropped      INTEGER,
    output_gap          INTEGER,
    result              TEXT,
    payload             TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX task_id ON task (id);
CREATE INDEX task_ended ON task (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX task_keyed ON task (finished_at) WHERE state = 2 AND execution_key IS NOT NULL;
CREATE INDEX task_schedule ON task (schedule) WHERE schedule IS NOT NULL;

CREATE TABLE attempt (
    seq             INTEGER NOT NULL,
    number          INTEGER NOT NULL,
    worker          INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    finished_at     INTEGER NOT NULL,
    outcome         TEXT NOT NULL,
    error_class     TEXT,
    error_message   TEXT,
    fingerprint     TEXT,
    exit_code       INTEGER,
    http_status     INTEGER,
    output          BLOB,
    output_dropped  INTEGER,
    output_gap      INTEGER,
    PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

-- Due and not parked, in the order of its lane.
CREATE TABLE ready (
    lane    INTEGER NOT NULL,
    ord     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (lane, ord, seq)
) STRICT, WITHOUT ROWID;

-- Not due when it was put here. Claims move what has become due to `ready` or `slot`.
CREATE TABLE scheduled (
    run_at  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    lane    INTEGER NOT NULL,
    ord     INTEGER NOT NULL,
    keyed   INTEGER NOT NULL,                 -- has a concurrency_key
    PRIMARY KEY (run_at, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE running (
    seq                 INTEGER PRIMARY KEY,
    fence               INTEGER NOT NULL,
    token               INTEGER NOT NULL,
    worker              INTEGER NOT NULL,
    lane                INTEGER NOT NULL,
    claimed_at          INTEGER NOT NULL,
    lease_until         INTEGER,              -- NULL: the worker's lease covers it
    cancel_requested_at INTEGER,
    tied                INTEGER NOT NULL      -- has a key, a concurrency_key or a schedule
) STRICT;

-- Pending tasks that expire.
CREATE TABLE expiring (
    expires_at  INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    PRIMARY KEY (expires_at, seq)
) STRICT, WITHOUT ROWID;

-- Uniqueness of keys and ledger in one: the live task of a key, or the one that completed.
-- While the task's row is there, that says which; a completion writes nothing here.
CREATE TABLE exec_key (
    type    INTEGER NOT NULL,
    key     TEXT NOT NULL,
    id      BLOB NOT NULL,
    at      INTEGER,                          -- of completion; taken over with the result
    result  TEXT,                             -- when the task's row is pruned
    PRIMARY KEY (type, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX exec_key_at ON exec_key (at) WHERE at IS NOT NULL;

-- Pending tasks in line that have a concurrency_key. Stage 0: in `ready`, `ord` is its place
-- there. Parked: stage 1 was in line when its key last took turns (`ord` is -priority), stage 2
-- came later (`ord` is its own order).
CREATE TABLE slot (
    type        INTEGER NOT NULL,
    key         TEXT NOT NULL,
    stage       INTEGER NOT NULL,
    lane        INTEGER NOT NULL,
    ord         INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,
    PRIMARY KEY (type, key, stage, lane, ord, seq)
) STRICT, WITHOUT ROWID;

-- Keys whose tasks have run.
CREATE TABLE turn (
    type    INTEGER NOT NULL,
    key     TEXT NOT NULL,
    running INTEGER NOT NULL,
    freed   INTEGER,                          -- when a slot of the saturated key was last freed
    PRIMARY KEY (type, key)
) STRICT, WITHOUT ROWID;

-- Live tasks of a schedule.
CREATE TABLE schedule_live (
    schedule_uid    BLOB NOT NULL,
    held            INTEGER NOT NULL,
    seq             INTEGER NOT NULL,
    PRIMARY KEY (schedule_uid, held, seq)
) STRICT, WITHOUT ROWID;

-- Dead letters since the last completion, where there are any.
CREATE TABLE schedule_failures (
    schedule_uid    BLOB PRIMARY KEY,
    count           INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Failed tasks, with what filters and groups ask for.
CREATE TABLE dead_letter (
    seq             INTEGER PRIMARY KEY,
    failed_at       INTEGER NOT NULL,
    lane            INTEGER NOT NULL,
    schedule        INTEGER,
    fingerprint     TEXT NOT NULL,
    tags            TEXT,
    execution_key   TEXT,
    dismissed_at    INTEGER
) STRICT;
CREATE INDEX dead_letter_key ON dead_letter (execution_key) WHERE execution_key IS NOT NULL;
CREATE INDEX dead_letter_time ON dead_letter (failed_at) WHERE dismissed_at IS NULL;
CREATE INDEX dead_letter_group
    ON dead_letter (fingerprint, failed_at, seq, lane, schedule, dismissed_at)
    WHERE dismissed_at IS NULL;
CREATE INDEX dead_letter_dismissed ON dead_letter (dismissed_at) WHERE dismissed_at IS NOT NULL;

CREATE TABLE schedule (
    name        TEXT PRIMARY KEY,
    uid         BLOB NOT NULL,
    rev         INTEGER NOT NULL,
    next_due    INTEGER,                      -- NULL unless it is active
    state       TEXT NOT NULL,                -- JSON
    decided     INTEGER NOT NULL,             -- occurrences that its balance counts
    unrecorded  INTEGER NOT NULL              -- of these, without a record: pruned, or imported
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_due ON schedule (next_due, name) WHERE next_due IS NOT NULL;
CREATE INDEX schedule_uid ON schedule (uid);

CREATE TABLE occurrence (
    number          INTEGER PRIMARY KEY,
    schedule_uid    BLOB NOT NULL,
    schedule        INTEGER NOT NULL,
    label           TEXT NOT NULL,
    label_to        TEXT,
    count           INTEGER NOT NULL,
    kind            TEXT NOT NULL,
    time            INTEGER NOT NULL,
    outcome         TEXT NOT NULL,
    reason          TEXT,
    task_id         BLOB,
    fired_at        INTEGER
) STRICT;
CREATE UNIQUE INDEX occurrence_label ON occurrence (schedule_uid, label)
    WHERE kind = 'scheduled';
CREATE INDEX occurrence_schedule ON occurrence (schedule);
CREATE INDEX occurrence_fired ON occurrence (schedule_uid, time) WHERE outcome = 'fired';
CREATE INDEX occurrence_age ON occurrence (coalesce(fired_at, time));

CREATE TABLE worker (
    name        INTEGER PRIMARY KEY,          -- in the table `name`
    node_id     TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    draining    INTEGER NOT NULL,
    remote      INTEGER NOT NULL,
    pools       TEXT NOT NULL,                -- JSON: [[pool, slots], …]
    types       TEXT,                         -- JSON array; NULL: any
    retired     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE setting (
    scope   TEXT NOT NULL,                    -- frozen, pool, limit
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,                    -- JSON
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

-- State of each type's rate limit.
CREATE TABLE rate (
    type        INTEGER PRIMARY KEY,
    spent_until INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    number  INTEGER PRIMARY KEY,
    time    INTEGER NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    target  TEXT NOT NULL,
    reason  TEXT
) STRICT;
CREATE INDEX audit_time ON audit (time);

CREATE TABLE operation (
    id          BLOB PRIMARY KEY,
    running     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    value       TEXT NOT NULL,                -- JSON, without the payload
    payload     TEXT                          -- byte for byte
) STRICT, WITHOUT ROWID;
CREATE INDEX operation_running ON operation (created_at) WHERE running = 1;

CREATE TABLE token (
    name    TEXT PRIMARY KEY,
    value   TEXT NOT NULL                     -- JSON
) STRICT, WITHOUT ROWID;

CREATE TABLE note (
    key     TEXT PRIMARY KEY,
    value   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A task with what is known of its run. The columns of the run come first, so that a column
-- added to `task` moves none.
CREATE VIEW task_full AS
SELECT r.fence, r.token, r.worker AS run_worker, r.claimed_at,
       r.cancel_requested_at AS run_cancel_requested_at, t.*
FROM task AS t LEFT JOIN running AS r ON r.seq = t.seq;
