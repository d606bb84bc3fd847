//! Every key of `matins.yaml`: the one list that the reader, its suggestions and the reference
//! page are made from.

mod alerts;
mod node;
mod work;

use std::fmt::Write as _;

pub(crate) use alerts::{ALERTS, CHANNEL, QUIET, RULE};
pub(crate) use node::{
    AUTH, HTTP, LIMITS, LOG, PING, REDIS_MIRROR, RETENTION, TLS, TOKEN, TOP, TRACES,
};
pub(crate) use work::{BACKOFF, BLACKOUT, DEFAULTS, DST, ON_TIMEOUT, POOL, SCHEDULE, TASK};

/// One key: what it takes, what it is when absent, what it does.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) form: &'static str,
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
    /// May also be given as `MATINS_NAME`, which wins over the file.
    pub(crate) env: bool,
}

const fn key(
    name: &'static str,
    form: &'static str,
    default: &'static str,
    about: &'static str,
) -> Key {
    Key { name, form, default, about, env: false }
}

impl Key {
    const fn or_env(mut self) -> Self {
        self.env = true;
        self
    }
}

/// A mapping with known keys.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: &'static [Key],
}

/// In the order of the reference page.
pub(crate) static SECTIONS: [&Section; 23] = [
    &TOP,
    &LOG,
    &DEFAULTS,
    &BACKOFF,
    &POOL,
    &TASK,
    &ON_TIMEOUT,
    &SCHEDULE,
    &DST,
    &BLACKOUT,
    &AUTH,
    &TOKEN,
    &TLS,
    &HTTP,
    &PING,
    &TRACES,
    &RETENTION,
    &REDIS_MIRROR,
    &ALERTS,
    &CHANNEL,
    &QUIET,
    &RULE,
    &LIMITS,
];

const HEAD: &str = "\
# Configuration: `matins.yaml`

<!-- Made from crates/matins-cli/src/config/reference.rs; a test keeps it up to date. -->

Where it is looked for: `-c FILE`, `MATINS_CONFIG`, then `./matins.yaml` or the nearest one in a
folder above. `matins init` writes a commented one, `matins check` says what is wrong with it.
Paths are relative to the file's folder.

What wins, from the weakest: built-in default, file, environment, flag.

**Durations** are seconds (`300`, `0.2`) or units: `200ms`, `30s`, `5m`, `1h30m`, `7d`, `2w`.
**Sizes** are bytes (`65536`) or units: `64KiB`, `1GB`. **Booleans** are `true` and `false`;
`yes` and `on` are refused. **Secrets** are given by reference: `env:NAME` reads the environment,
`file:PATH` a file whose last line break is dropped.

Unknown keys, keys given twice and wrong values are refused, with file, line and column.

On SIGHUP `serve` reads the file again: `defaults`, `task_pools`, `tasks`, `schedules`, `http`,
`allow_commands`, `pings`, `retention`, `limits` and `alerts` take effect at once, the rest at the next start. A file
with a mistake changes nothing and is reported in the log.
";

/// The reference page.
pub(crate) fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for section in SECTIONS {
        let _ = match section.title {
            "Top level" => write!(page, "\n## Top level\n\n"),
            title => write!(page, "\n## `{title}`\n\n"),
        };
        if !section.about.is_empty() {
            let _ = write!(page, "{}\n\n", section.about);
        }
        page.push_str("| key | takes | default | what it does |\n|---|---|---|---|\n");
        for key in section.keys {
            let env = if key.env {
                format!(" Environment: `{}`.", variable(key.name))
            } else {
                String::new()
            };
            let Key { name, form, default, about, .. } = key;
            let _ = writeln!(page, "| `{name}` | {form} | {default} | {about}{env} |");
        }
    }
    page
}

/// The environment variable of a top-level key.
pub(crate) fn variable(key: &str) -> String {
    format!("MATINS_{}", key.to_uppercase())
}
