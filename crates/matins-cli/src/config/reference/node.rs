//! Keys of the node itself.

use super::{Section, key};

pub(crate) static TOP: Section = Section {
    title: "Top level",
    about: "Every key may be left out: an empty file, and no file at all, are valid.",
    keys: &[
        key(
            "store",
            "`sqlite:PATH`, `postgres://USER:PASSWORD@HOST/DATABASE`",
            "`sqlite:matins.db` in `data_dir`",
            "Where tasks and schedules are kept. May be `env:NAME` or `file:PATH`. A file has one \
             server, a database any number of them. Add `?pgbouncer=true` behind a pooler that \
             hands out a session per transaction.",
        )
        .or_env(),
        key(
            "store_connections",
            "number",
            "`3`",
            "Connections of this node to a PostgreSQL store: one listens and is for beats, the \
             others are for the work.",
        )
        .or_env(),
        key(
            "migrate",
            "`auto`, `manual`",
            "`auto`",
            "Whether `serve` and writing commands bring the store's schema up to date by \
             themselves. `manual` refuses to start and names the command.",
        )
        .or_env(),
        key(
            "listen",
            "`HOST:PORT`",
            "`127.0.0.1:6284`",
            "Where the HTTP API listens. An address that is not loopback needs tokens under \
             `auth`.",
        )
        .or_env(),
        key("public_url", "URL", "none", "How people reach this server, for links.").or_env(),
        key(
            "allowed_hosts",
            "list of host names",
            "none",
            "Host names, beside loopback and `public_url`, under which requests are accepted.",
        ),
        key(
            "data_dir",
            "path",
            "`.matins`",
            "Folder for the store, the admin token and lock files. Made with a `.gitignore` of \
             `*`.",
        )
        .or_env(),
        key(
            "node_id",
            "name",
            "`<hostname>-<port>`",
            "Name of this node. Several nodes may share a `data_dir`, each under a name of its \
             own.",
        )
        .or_env(),
        key(
            "lease",
            "duration, 1s to 1h",
            "`30s`",
            "How long a worker's word counts without renewal. Renewed every third of it.",
        )
        .or_env(),
        key(
            "heartbeat",
            "duration, 1s to 1h",
            "`30s`",
            "How often this node says that all its loops turn.",
        )
        .or_env(),
        key(
            "heartbeat_url",
            "URL",
            "none",
            "Called with every heartbeat, so that a service outside notices when the calls stop. \
             May be `env:NAME` or `file:PATH`.",
        )
        .or_env(),
        key(
            "stall_after",
            "duration, 1s to 1h",
            "`45s`",
            "A loop that has not turned for this long, while the store answers, has stalled.",
        )
        .or_env(),
        key(
            "poll",
            "duration, 10ms to 1m",
            "`1s`",
            "Time between two looks at the store without a wake-up; up to a quarter longer, so that nodes do not look together.",
        )
        .or_env(),
        key(
            "drain_timeout",
            "duration, up to 1h",
            "`30s`",
            "How long a shutdown waits for running tasks, kill ladder included.",
        )
        .or_env(),
        key(
            "display_timezone",
            "IANA name",
            "`UTC`",
            "Zone in which the command line shows times. Schedules have their own.",
        )
        .or_env(),
        key("log", "mapping", "see below", "Form and level of the log."),
        key(
            "defaults",
            "mapping",
            "see below",
            "Policy of every type that does not say otherwise.",
        ),
        key(
            "task_pools",
            "mapping by name",
            "`default` alone",
            "Pools with workers of their own, so that one kind of task cannot block another.",
        ),
        key("tasks", "mapping by type", "none", "Task types of this node: what runs them and how."),
        key(
            "schedules",
            "mapping by name",
            "none",
            "Schedules of this file. What the file no longer names is disabled, its history \
             kept.",
        ),
        key(
            "auth",
            "mapping",
            "see below",
            "Tokens that open the HTTP API. Without any, `serve` makes an admin token in \
             `DATA_DIR/token`.",
        ),
        key("tls", "mapping", "none", "Certificate and key: the API is served over TLS."),
        key(
            "allow_commands",
            "`none`, `any` or a list of types",
            "`any` on SQLite, `none` on PostgreSQL",
            "Which of `command`, `http_call` and `db_query`, whose payload says what to run, \
             this node runs.",
        ),
        key("http", "mapping", "see below", "Where URLs that come out of payloads may lead."),
        key(
            "canary",
            "`off`, or duration, 5s to 1d",
            "`5m`",
            "How often a task of the type `matins.canary` goes through each pool of this node, to \
             show that it works.",
        )
        .or_env(),
        key(
            "pings",
            "mapping by name",
            "none",
            "Jobs that others run, such as lines of a crontab, and that report when they have \
             run: silence is told.",
        ),
        key("traces", "mapping", "none", "Where traces go, in the form of OpenTelemetry."),
        key("retention", "mapping", "see below", "How long ended things are kept."),
        key(
            "limits",
            "mapping",
            "see below",
            "Sizes beyond which data is refused or cut, always visibly.",
        ),
        key(
            "connections",
            "mapping by name",
            "none",
            "Databases of `sql` types and of `db_query`: `postgres://USER:PASSWORD@HOST/DATABASE` or \
             `sqlite:PATH`. May be `env:NAME` or `file:PATH`. A name that a task has in its payload \
             must be here.",
        ),
        key("alerts", "mapping", "none", "Alert channels and rules: see below."),
        key(
            "redis",
            "`redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…`, `redis+sentinel://HOST,HOST/MASTER`, \
             `redis+cluster://HOST,HOST`",
            "none",
            "Redis 6.2 or newer, or Valkey, in front of a PostgreSQL store, for dispatch. It holds \
             hints, never the truth. May be `env:NAME` or `file:PATH`.",
        )
        .or_env(),
        key(
            "redis_prefix",
            "text",
            "`matins:`",
            "Prefix of keys in Redis; on a cluster `{matins}:`. Each store needs one of its own.",
        ),
        key(
            "redis_mirror",
            "`off` or `{horizon, tasks, bytes}`",
            "as below",
            "Whole tasks lie in Redis too, if that keeps what it is told (AOF), and run from there \
             while PostgreSQL is away. `off` on all nodes or on none. Only with `redis`.",
        ),
        key(
            "journal_key",
            "text",
            "none",
            "Seals the entries of the outage journal (HMAC-SHA256), so that nobody who can write to \
             Redis brings tasks in: at least 16 bytes, the same on all nodes. May be `env:NAME` or \
             `file:PATH`. Only with `redis`.",
        ),
        key(
            "accept_volatile",
            "`true`, `false`",
            "`false`",
            "Whether tasks are journalled in an outage although Redis may forget them (no AOF, or a \
             `maxmemory-policy` other than `noeviction`). They are answered with \
             `\"durability\": \"volatile\"`. Only with `redis`.",
        ),
        key(
            "outage_after",
            "duration, 1s to 10m",
            "`5s`",
            "How long no call to PostgreSQL must have succeeded until tasks are journalled. \
             Enqueues wait meanwhile. Only with `redis`.",
        ),
        key(
            "outage_window",
            "duration, 1m to 1d",
            "`10m`",
            "How long a node may work from Redis alone, and how long others wait for one that is \
             gone. Only with `redis_mirror`.",
        ),
    ],
};

pub(crate) static LOG: Section = Section {
    title: "log",
    about: "",
    keys: &[
        key(
            "format",
            "`text`, `json`",
            "`text`",
            "`json` writes one object per line with stable field names.",
        ),
        key(
            "level",
            "`error`, `warn`, `info`, `debug`, `trace`",
            "`info`",
            "Least important message written.",
        ),
    ],
};

pub(crate) static AUTH: Section = Section {
    title: "auth",
    about: "",
    keys: &[
        key(
            "tokens",
            "mapping by name",
            "none",
            "Tokens given by this file, beside those of `matins token create`.",
        ),
        key(
            "metrics",
            "`token`, `public`",
            "`token`",
            "Whether `/metrics` needs a viewer token when the server does not listen on \
             loopback.",
        ),
    ],
};

pub(crate) static TOKEN: Section = Section {
    title: "auth.tokens.NAME",
    about: "",
    keys: &[
        key(
            "token",
            "text of at least 22 characters",
            "required",
            "The secret. Give it by reference: `env:NAME` or `file:PATH`.",
        ),
        key(
            "role",
            "`viewer`, `operator`, `admin`, `worker`, `enqueue`",
            "required",
            "What it may do.",
        ),
        key("types", "list of types", "any", "`worker` and `enqueue`: the types it is limited to."),
    ],
};

pub(crate) static TLS: Section = Section {
    title: "tls",
    about: "Read again with SIGHUP.",
    keys: &[
        key("cert", "path", "required", "Certificate chain, in PEM."),
        key("key", "path", "required", "Its key, in PEM."),
    ],
};

pub(crate) static HTTP: Section = Section {
    title: "http",
    about: "For `http_call`, whose URLs come out of payloads. Link-local and metadata addresses \
            stay closed to every URL.",
    keys: &[
        key(
            "allow",
            "list of address ranges",
            "none",
            "Private and loopback ranges, such as `10.0.0.0/8`, that URLs of payloads may reach.",
        ),
        key("redirects", "0 to 20", "`0`", "Most redirects that a payload's URL may follow."),
    ],
};

pub(crate) static PING: Section = Section {
    title: "pings.NAME",
    about: "The job reports with `curl -fsS -X POST -H \"Authorization: Bearer TOKEN\" \
            URL/api/v1/pings/NAME`; a token of the role `enqueue` will do.",
    keys: &[
        key("period", "duration, 1s to 366d", "required", "How often it reports."),
        key("grace", "duration", "a quarter of the period", "How late it may be."),
    ],
};

pub(crate) static REDIS_MIRROR: Section = Section {
    title: "redis_mirror",
    about: "What cannot be mirrored waits for PostgreSQL.",
    keys: &[
        key("horizon", "duration", "`1h`", "How far ahead tasks are mirrored, soonest first."),
        key("tasks", "count", "`100000`", "Most tasks."),
        key("bytes", "size", "`256MiB`", "Most bytes of these."),
    ],
};

pub(crate) static TRACES: Section = Section {
    title: "traces",
    about: "A trace of each task that has ended, from enqueue to finish with a span for each \
            attempt, goes to a collector of OpenTelemetry (OTLP over HTTP, JSON). Payloads, \
            results and output are not in it.",
    keys: &[
        key(
            "url",
            "URL",
            "required",
            "The whole address: usually `http://HOST:4318/v1/traces`. May be `env:NAME` or \
             `file:PATH`.",
        ),
        key(
            "headers",
            "mapping",
            "none",
            "Headers to send. Values may be `env:NAME` or `file:PATH`.",
        ),
        key("sample", "number, 0 to 1", "`1`", "Share of the tasks that is traced."),
    ],
};

pub(crate) static RETENTION: Section = Section {
    title: "retention",
    about: "",
    keys: &[
        key("completed", "duration", "`7d`", "Completed tasks."),
        key("cancelled", "duration", "`7d`", "Cancelled tasks."),
        key(
            "failed",
            "duration",
            "`30d`",
            "Dead letters, from their dismissal on. One that nobody dismissed stays.",
        ),
        key(
            "ledger",
            "duration or `forever`",
            "`400d`",
            "How long a completed `execution_key` is remembered.",
        ),
        key("occurrences", "duration", "`400d`", "History of schedules."),
        key("audit", "duration", "`400d`", "Audit log, and finished operations."),
        key("alerts", "duration", "`30d`", "Alerts, told or not."),
    ],
};

pub(crate) static LIMITS: Section = Section {
    title: "limits",
    about: "",
    keys: &[
        key("payload_bytes", "size", "`1MiB`", "Largest payload of a task."),
        key(
            "result_bytes",
            "size",
            "`256KiB`",
            "Largest result kept; a larger one is dropped and its size recorded.",
        ),
        key(
            "output_bytes",
            "size",
            "`64KiB`",
            "Output kept per attempt: the first quarter and the last three.",
        ),
        key("key_bytes", "16 to 1024", "`255`", "Longest `execution_key` and `concurrency_key`."),
        key("batch_items", "1 to 1000000", "`10000`", "Most tasks in one batch."),
        key("batch_bytes", "size", "`64MiB`", "Largest body of a batch."),
    ],
};
