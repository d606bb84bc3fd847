//! Keys of what is run: types, pools, schedules.

use super::{Section, key};

macro_rules! policy_keys {
    ($($more:expr),* $(,)?) => {
        &[
            key(
                "timeout",
                "duration above zero, or `none`",
                "`5m`",
                "Time limit of an attempt. Then SIGTERM to everything it started, `grace`, \
                 SIGKILL.",
            ),
            key("grace", "duration", "`10s`", "Between asking a run to end and ending it."),
            key(
                "max_retries",
                "0 to 1000000",
                "`3`",
                "Retries after a failure before the task becomes a dead letter.",
            ),
            key(
                "backoff",
                "mapping",
                "`{initial: 60s, factor: 2, max: 1h, jitter: 0.1}`",
                "Wait before a retry: `min(initial × factor^n, max)`, shortened by up to \
                 `jitter` of it.",
            ),
            key(
                "max_losses",
                "1 to 1000",
                "`3`",
                "Losses (the worker died under the task) at which it becomes a dead letter.",
            ),
            key(
                "max_interruptions",
                "0 to 100000",
                "`10`",
                "Interruptions by a shutdown beyond which each counts as a loss.",
            ),
            $($more),*
        ]
    };
}

pub(crate) static DEFAULTS: Section =
    Section { title: "defaults", about: "The policy keys of a type.", keys: policy_keys!() };

pub(crate) static BACKOFF: Section = Section {
    title: "backoff",
    about: "",
    keys: &[
        key("initial", "duration", "`60s`", "Wait before the first retry."),
        key("factor", "1 to 1000", "`2`", "Growth per retry."),
        key("max", "duration, at least `initial`", "`1h`", "Longest wait."),
        key(
            "jitter",
            "0 to 1",
            "`0.1`",
            "Share of the wait that chance may take away; 0 is exact.",
        ),
    ],
};

pub(crate) static POOL: Section = Section {
    title: "task_pools.NAME",
    about: "A type in no pool goes to `default`.",
    keys: &[
        key(
            "max_workers",
            "1 to 10000",
            "`10` for `default`, else required",
            "Tasks of this pool that run at once on this node.",
        ),
        key(
            "task_types",
            "list of types",
            "none for `default`, else required",
            "Types whose tasks go here. A type belongs to one pool.",
        ),
    ],
};

pub(crate) static TASK: Section = Section {
    title: "tasks.TYPE",
    about: "The built-in types `command`, `http_call` and `db_query` need no entry: their payload \
            says what to run.",
    keys: policy_keys!(
        key(
            "executor",
            "`command`, `http`, `sql`",
            "required",
            "What does the work. `agent` is not available in this build.",
        ),
        key(
            "command",
            "list of words",
            "none",
            "`command`: program and arguments, started without a shell.",
        ),
        key("shell", "text", "none", "`command`: a line for `sh -c`, instead of `command`."),
        key(
            "env",
            "mapping",
            "none",
            "`command`: environment on top of a small allow-list. Values may be `env:NAME` or \
             `file:PATH`.",
        ),
        key("cwd", "path", "the file's folder", "`command`: working directory."),
        key("user", "name", "the server's", "`command`: user to run as; needs root."),
        key("nice", "-20 to 19", "`0`", "`command`: scheduling priority."),
        key(
            "memory_max",
            "size",
            "none",
            "`command`: memory of the whole tree, where the system allows.",
        ),
        key(
            "cpu_max",
            "0.01 to 1024",
            "none",
            "`command`: cores for the whole tree, where the system allows.",
        ),
        key(
            "result",
            "`last_json_line`, `stdout`, `none`",
            "`last_json_line`",
            "`command`: what becomes the task's result.",
        ),
        key(
            "permanent_exit_codes",
            "list of 1 to 255",
            "`[78, 126, 127]`",
            "`command`: exit codes that no retry helps.",
        ),
        key(
            "on_timeout",
            "mapping",
            "none",
            "`command`: cleanup that runs when a timed-out tree is gone.",
        ),
        key(
            "url",
            "URL",
            "required for `http`",
            "`http`: where to send the request. May be `env:NAME` or `file:PATH`.",
        ),
        key("method", "`GET`, `POST`, …", "`POST`", "`http`: request method."),
        key(
            "headers",
            "mapping",
            "none",
            "`http`: request headers. Values may be `env:NAME` or `file:PATH`.",
        ),
        key("body", "text", "the payload", "`http`: request body."),
        key(
            "connect_timeout",
            "duration, 10ms to 5m",
            "`10s`",
            "`http`: time limit for the connection alone.",
        ),
        key(
            "redirects",
            "0 to 20",
            "`0`",
            "`http`: most redirects followed; each target is judged anew.",
        ),
        key("connection", "name", "required for `sql`", "`sql`: a name under `connections`."),
        key(
            "sql",
            "text",
            "required for `sql`",
            "`sql`: one statement, with parameters `$1`, `$2`, … (PostgreSQL) or `?1`, … (SQLite).",
        ),
        key(
            "params",
            "list of JSON pointers",
            "the payload, a list",
            "`sql`: where in the payload each parameter stands; an empty one is all of it.",
        ),
        key(
            "rate_limit",
            "`COUNT/s`, `/m`, `/h`, `/d`",
            "none",
            "Starts per period, over all nodes.",
        ),
        key(
            "concurrency",
            "1 to 1000000",
            "none",
            "Tasks of this type that run at once, over all nodes.",
        ),
        key(
            "concurrency_key",
            "JSON pointer such as `/tenant`",
            "none",
            "Where in the payload the key stands that shares `per_key` slots.",
        ),
        key(
            "per_key",
            "1 to 1000000",
            "`1`",
            "Tasks with one concurrency key that run at once, over all nodes.",
        ),
        key(
            "on_lease_loss",
            "`stop`, `finish`",
            "`stop`",
            "What a run does when its lease can no longer be renewed: it is stopped and counts as \
             lost, or it goes on, and its result counts if nobody has judged the lease by then.",
        ),
    ),
};

pub(crate) static ON_TIMEOUT: Section = Section {
    title: "tasks.TYPE.on_timeout",
    about: "",
    keys: &[
        key("command", "list of words", "none", "Program and arguments."),
        key("shell", "text", "none", "A line for `sh -c`, instead of `command`."),
        key("timeout", "duration, 100ms to 1h", "`30s`", "Time limit of the cleanup itself."),
    ],
};

pub(crate) static SCHEDULE: Section = Section {
    title: "schedules.NAME",
    about: "The same keys as in the API and on the command line.",
    keys: &[
        key(
            "schedule",
            "cron expression",
            "required",
            "5 fields, 6 with seconds, 7 with year; `@daily` …; `@every 45m`; `@at \
             2027-01-01T09:00`.",
        ),
        key("timezone", "IANA name", "`UTC`", "Zone of the expression. Never the host's."),
        key("type", "type", "required", "Type of the tasks it starts."),
        key(
            "payload",
            "any value",
            "`null`",
            "Payload of each task; texts in it may hold templates such as `{{ occurrence.date \
             }}`.",
        ),
        key(
            "execution_key",
            "text",
            "none",
            "Template of the key of each occurrence, such as `orders-{{ occurrence.date }}`.",
        ),
        key("pool", "pool", "the type's", "Pool of the tasks."),
        key("priority", "-100 to 100", "`0`", "Priority of the tasks, higher first."),
        key("grace", "duration", "`60s`", "Lateness that still counts as on time."),
        key(
            "catch_up",
            "`latest`, `all`, `none`",
            "`latest`",
            "Which occurrences that are later than `grace` are made up for.",
        ),
        key(
            "catch_up_window",
            "`auto` or duration",
            "`auto`",
            "How far back they are made up for; `auto` is the longer of 24 h and one period.",
        ),
        key(
            "catch_up_max",
            "1 to 10000",
            "`100`",
            "Most occurrences that `catch_up: all` makes up for.",
        ),
        key(
            "overlap",
            "`skip`, `buffer_one`, `buffer_all`, `cancel_previous`, `allow`",
            "`skip`",
            "What happens while the previous task has not ended.",
        ),
        key("overlap_max", "1 to 100000", "`1000`", "Most tasks that `buffer_all` holds."),
        key("dst", "mapping", "`{gap: run, fold: first}`", "What happens when the clocks change."),
        key(
            "jitter",
            "duration, up to 1d",
            "`0s`",
            "Longest delay by which fires are spread, the same for each occurrence.",
        ),
        key(
            "pause_after_failures",
            "0 to 100000",
            "`0`",
            "Dead letters in a row after which it pauses itself; 0: never.",
        ),
        key("start", "RFC 3339 time", "none", "Nothing fires before."),
        key("end", "RFC 3339 time", "none", "Nothing fires from then on."),
        key(
            "blackout",
            "list of `{from, to}`",
            "none",
            "Times in which nothing fires: `HH:MM`, or local date-times.",
        ),
        key("timeout", "duration or `none`", "the type's", "Time limit of an attempt."),
        key(
            "max_retries",
            "0 to 1000000",
            "the type's",
            "Retries before a task becomes a dead letter.",
        ),
        key("tags", "list of text", "none", "Tags of the tasks."),
        key(
            "on_resume",
            "`skip`, `latest`, `all`",
            "`skip`",
            "What a pause leaves to be done when it ends.",
        ),
        key("paused", "`true`, `false`", "`false`", "Created paused."),
        key("note", "text", "none", "For people."),
    ],
};

pub(crate) static DST: Section = Section {
    title: "schedules.NAME.dst",
    about: "",
    keys: &[
        key(
            "gap",
            "`run`, `skip`",
            "`run`",
            "A local time that does not exist that day: the first instant after it, or not at \
             all.",
        ),
        key(
            "fold",
            "`first`, `second`, `both`",
            "`first`",
            "Which copy of a local time that exists twice.",
        ),
    ],
};

pub(crate) static BLACKOUT: Section = Section {
    title: "schedules.NAME.blackout[]",
    about: "In the schedule's zone; `to` is excluded.",
    keys: &[
        key("from", "`HH:MM` or local date-time", "required", "Begin."),
        key(
            "to",
            "`HH:MM` or local date-time",
            "required",
            "End; an `HH:MM` before `from` is on the next day.",
        ),
    ],
};
