use std::path::PathBuf;
use std::time::Duration;

use matins_core::duration::Timeout;
use matins_runtime::executors::{CommandLine, ResultMode};
use matins_runtime::rules::{AllowCommands, TypeExecutor};

use super::*;

pub(super) fn load(text: &str) -> Result<Config, ConfigError> {
    load_with(text, &[])
}

fn load_with(text: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let env = |name: &str| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let sources = Sources { need_secrets: true, ..Sources::default() };
    sources.read(Some(Path::new("/etc/matins/matins.yaml")), text.to_owned(), &env)
}

/// The error of a text, with the folder taken off.
fn error(text: &str) -> String {
    let error = load(text).expect_err(text).to_string();
    error.replace("/etc/matins/", "")
}

#[test]
fn nothing_at_all_is_a_configuration() {
    for text in ["", "\n", "# only a comment\n", "---\n", "{}", "tasks:\nschedules:\ntask_pools:\n"]
    {
        let config = load(text).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:6284");
        assert_eq!(config.store, StoreLocation::Sqlite("/etc/matins/.matins/matins.db".into()));
        assert_eq!(config.rules.pool_sizes().len(), 1);
    }
}

#[test]
fn the_pools_of_the_article_work_as_they_stand() {
    let config = load(
        "task_pools: {io_pool: {max_workers: 20, task_types: [http_call, db_query]}, \
         cpu_pool: {max_workers: 4, task_types: [data_processing, report_generation]}}",
    )
    .unwrap();
    assert_eq!(&*config.rules.pool_of("db_query"), "io_pool");
    assert_eq!(&*config.rules.pool_of("report_generation"), "cpu_pool");
    assert_eq!(&*config.rules.pool_of("anything_else"), "default");
    let sizes = config.rules.pool_sizes();
    assert_eq!((sizes["io_pool"], sizes["cpu_pool"], sizes["default"]), (20, 4, 10));
}

#[test]
fn a_task_type_is_read_in_full() {
    let config = load_with(
        r#"
defaults: {timeout: 90, max_retries: 7}
tasks:
  sync_orders:
    executor: command
    command: [python3, sync.py, 10]
    timeout: 10m
    grace: 3s
    backoff: {initial: 2s, jitter: 0}
    env: {KEY: "env:THE_KEY", PORT: 8080}
    cwd: jobs
    result: stdout
    memory_max: 512MiB
    permanent_exit_codes: [3]
    on_timeout: {shell: "rm -f lock", timeout: 5}
    rate_limit: 100/m
    concurrency: 2
    concurrency_key: /tenant
  notify:
    {executor: http, url: "http://10.0.0.1/x", headers: {X-Key: "env:THE_KEY"}, max_retries: 0}
allow_commands: [command]
"#,
        &[("THE_KEY", "S3KR1T-42")],
    )
    .unwrap();
    let rule = &config.rules.types["sync_orders"];
    let TypeExecutor::Command(command) = &rule.executor else { panic!("{rule:?}") };
    let argv = ["python3", "sync.py", "10"].map(str::to_owned).to_vec();
    assert_eq!(command.line, CommandLine::Argv(argv));
    assert_eq!(command.cwd, PathBuf::from("/etc/matins/jobs"));
    assert_eq!(command.env["KEY"], Setting::secret("S3KR1T-42"));
    assert_eq!(command.env["PORT"], Setting::plain("8080"));
    assert_eq!(command.result, ResultMode::Stdout);
    assert_eq!(command.memory_max, Some(512 << 20));
    let cleanup = (CommandLine::Shell("rm -f lock".to_owned()), Duration::from_secs(5));
    assert_eq!(command.on_timeout, Some(cleanup));
    let policy = config.rules.policy_of("sync_orders");
    assert_eq!(policy.timeout, Timeout::After(Duration::from_secs(600)));
    assert_eq!((policy.retry.max_retries, policy.grace), (7, Duration::from_secs(3)));
    let policy = config.rules.policy_of("notify");
    assert_eq!(policy.timeout, Timeout::After(Duration::from_secs(90)));
    assert_eq!(policy.retry.max_retries, 0);
    assert!(!config.rules.allow_commands.allows("http_call"));
    assert!(
        matches!(&config.rules.allow_commands, AllowCommands::Types(types) if types.len() == 1)
    );
    assert!(!format!("{config:?}").contains("S3KR1T"), "a secret in Debug output");
}

#[test]
fn a_problem_says_where_what_and_what_instead() {
    assert_eq!(
        error("task_pools:\n  io_pool:\n    max_workers: 0\n    task_types: []\n"),
        "matins.yaml:3:18: task_pools.io_pool.max_workers: \
         expected a whole number from 1 to 10000, got 0
  |
3 |     max_workers: 0
  |                  ^"
    );
    assert_eq!(
        error("tasks:\n  通知: {executor: http, url: 'http://a', max_retrys: 3}\n"),
        "matins.yaml:2:41: tasks.通知.max_retrys: unknown key
  |
2 |   通知: {executor: http, url: **********, max_retrys: 3}
  |                                           ^^^^^^^^^^
  = hint: did you mean max_retries?"
    );
    assert_eq!(
        error("lease: 5x\n"),
        "matins.yaml:1:8: lease: expected a duration such as 300, 0.2, 200ms, 5m or 1h30m, got 5x
  |
1 | lease: 5x
  |        ^^"
    );
}

#[test]
fn every_problem_of_a_file_is_told_at_once() {
    let text = "\
lease: never
task_pools:
  a: {max_workers: 1, task_types: [x]}
  b: {max_workers: 1, task_types: [y, x]}
tasks:
  x: {executor: agent}
  y: {executor: comand, command: [true]}
  z: {command: [ls]}
schedules:
  s: {schedule: \"61 * * * *\", type: x}
  t: {schedule: '0 0 * * *', type: x, timezone: EST}
listen: 127.0.0.1:6284
listen: 127.0.0.1:6285
";
    let error = load(text).unwrap_err();
    let told = error.to_string();
    for part in [
        "matins.yaml:1:8: lease:",
        "matins.yaml:4:39: task_pools.b.task_types[1]: the type x already belongs to pool a",
        "first listed in line 3",
        "matins.yaml:6:17: tasks.x.executor: the executor agent is not available in this build",
        "tasks.y.executor: expected command, http or sql, got comand",
        "did you mean command?",
        "matins.yaml:8:3: tasks.z: the key executor is missing: expected command, http or sql",
        "matins.yaml:10:18: schedules.s.schedule:",
        "schedules.t.timezone: unknown time zone \"EST\"",
        "did you mean America/New_York?",
        "matins.yaml:13:1: the key listen is given twice",
        "first given in line 12",
    ] {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
    assert_eq!(error.problems.len(), 8, "{told}");
}

/// Texts, and what each is answered with.
const WRONG: &[(&str, &str)] = &[
    ("task_pools: {a: {max_workers: 3}}", "the key task_types is missing"),
    ("task_pools: {a: {task_types: [x]}}", "the key max_workers is missing"),
    ("task_pools: {a: {max_workers: '3', task_types: []}}", "expected a whole number"),
    ("task_pools: {a: {max_workers: 03, task_types: []}}", "expected a whole number"),
    ("task_pools: {a: {max_workers: 1e1, task_types: []}}", "expected a whole number"),
    ("task_pools: {a: {max_workers: 1, task_types: x}}", "expected a list such as [a, b], got x"),
    ("task_pools: {default: {workers: 3}}", "did you mean max_workers?"),
    ("task_pools: [a]", "expected a mapping of names, got a list"),
    ("tasks: {x: {executor: command}}", "the key command or shell is missing"),
    ("tasks: {x: {executor: command, command: ls -l}}", "expected a list of words"),
    ("tasks: {x: {executor: command, command: []}}", "begins with a program"),
    ("tasks: {x: {executor: command, command: [ls], shell: ls}}", "give one of the two"),
    ("tasks: {x: {executor: command, command: [ls], url: x}}", "belongs to executor http"),
    (
        "tasks: {x: {executor: http, url: 'ftp://x'}}",
        "expected an http or https URL, got \"ftp://x\"",
    ),
    ("tasks: {x: {executor: http}}", "the key url is missing"),
    ("tasks: {x: {executor: http, url: 'http://x', method: post}}", "did you mean POST?"),
    (
        "tasks: {x: {executor: http, url: 'http://x', headers: {'a b': c}}}",
        "not the name of a header",
    ),
    ("tasks: {x: {executor: agent}}", "executor agent is not available in this build"),
    ("tasks: {command: {executor: command, command: [ls]}}", "command is built in"),
    ("tasks: {x: {executor: command, command: [ls], timeout: 0}}", "or the word none, got 0"),
    ("tasks: {x: {executor: command, command: [ls], concurrency_key: tenant}}", "a JSON pointer"),
    ("tasks: {x: {executor: command, command: [ls], rate_limit: 5/w}}", "is not a rate"),
    ("defaults: {backoff: {initial: 2h, max: 1h}}", "expected at least backoff.initial"),
    ("defaults: {backoff: {jitter: 2}}", "expected a number from 0 to 1, got 2"),
    ("defaults: {timeout: 5x}", "or the word none, got 5x"),
    ("defaults: {timeout:}", "got nothing"),
    ("schedules: {s: {type: x}}", "the key schedule is missing"),
    ("schedules: {s: {cron: '* * * * *', type: x}}", "did you mean schedule?"),
    (
        "schedules: {s: {schedule: '* * * * *', type: x, paused: yes}}",
        "expected true or false, got yes",
    ),
    (
        "schedules: {s: {schedule: '* * * * *', type: x, timezone: Asia/Shangai}}",
        "did you mean Asia/Shanghai?",
    ),
    (
        "schedules: {s: {schedule: '* * * * *', type: x, overlap: buffer}}",
        "expected skip, buffer_one, buffer_all",
    ),
    ("schedules: {s: {schedule: '0 0 30 2 *', type: x}}", "no year has such a day"),
    (
        "schedules: {s: {schedule: '* * * * *', type: x, payload: 0x1F}}",
        "JSON cannot keep as written",
    ),
    (
        "schedules: {s: {schedule: '* * * * *', type: x, payload: [.inf]}}",
        "JSON cannot keep as written",
    ),
    ("redis: 'redis://localhost'", "redis: needs a PostgreSQL store"),
    ("store: postgres://h/d\nredis: 'http://localhost'", "redis: not an address of Redis"),
    ("store: postgres://h/d\nredis: 'redis+sentinel://h'", "the name of the master is missing"),
    (
        "store: mysql://localhost/x",
        "a mysql store is not available in this build; available: sqlite, postgres",
    ),
    ("store: matins.db", "did you mean sqlite:matins.db?"),
    ("store: 'postgrs://a@b/c'", "did you mean postgres://a@b/c?"),
    ("store: 'sqlite:'", "expected a file name"),
    ("alerts: {channels: {ops: {kind: dingtak, url: 'http://x'}}}", "did you mean dingtalk?"),
    ("alerts: {channels: {ops: {kind: slack}}}", "the key url is missing"),
    ("alerts: {channels: {ops: {kind: slack, url: 'ftp://x'}}}", "expected an http or https URL"),
    (
        "alerts: {channels: {ops: {kind: slack, url: 'http://x', at_mobiles: ['1']}}}",
        "a channel of kind slack has no such key",
    ),
    (
        "alerts: {channels: {m: {kind: email, server: 'x:y', from: a@b.c, to: [a@b.c]}}}",
        "expected HOST or HOST:PORT",
    ),
    (
        "alerts: {channels: {m: {kind: email, server: x, from: nobody, to: [a@b.c]}}}",
        "expected a mail address",
    ),
    ("alerts: {rules: {dead_leter: {}}}", "did you mean dead_letter?"),
    ("alerts: {rules: {dead_letter: {channels: [op]}}}", "there is no channel op"),
    (
        "alerts: {channels: {o: {kind: slack, url: 'http://x', quiet: {from: 25:00, to: '7:00'}}}}",
        "expected a time of day",
    ),
    ("accept_volatile: true", "has no effect without redis"),
    ("outage_after: 5s", "has no effect without redis"),
    ("{store: 'postgres://x', redis: 'redis://x', outage_after: 1ms}", "expected a duration"),
    ("{store: 'postgres://x', redis: 'redis://x', journal_key: short}", "at least 16 bytes"),
    ("redis_mirror: {horizon: 1h}", "has no effect without redis"),
    ("outage_window: 5m", "has no effect without redis"),
    ("{store: 'postgres://x', redis: 'redis://x', outage_window: 1s}", "expected a duration"),
    ("{store: 'postgres://x', redis: 'redis://x', redis_mirror: on}", "expected off, or a mapping"),
    ("{store: 'postgres://x', redis: 'redis://x', redis_mirror: {task: 1}}", "did you mean tasks"),
    ("listen: somewhere", "expected an address and port"),
    ("node_id: a/b", "expected at most 100 letters"),
    ("auth: {tokens: {a: {token: '', role: admin}}}", "at least 22 characters"),
    (
        "schedules: {s: {schedule: '@daily', type: x, execution_key: 'k-{{ occurrence.dat }}'}}",
        "schedules.s.execution_key:",
    ),
    (
        "schedules: {s: {schedule: '@daily', type: x, blackout: [{from: '25:00', to: '1:00'}]}}",
        "schedules.s.blackout:",
    ),
    (
        "schedules: {s: {schedule: '@daily', type: x, start: 2027-01-02T00:00:00Z, \
         end: 2027-01-01T00:00:00Z}}",
        "schedules.s.end: must lie after start",
    ),
    (
        "auth: {tokens: {a: {token: 'env:NOT_THERE', role: admin}}}",
        "the environment has no NOT_THERE",
    ),
    (
        "auth: {tokens: {a: {token: 'file:not.there', role: admin}}}",
        "/etc/matins/not.there cannot be read",
    ),
    (
        "auth: {tokens: {a: {token: 0123456789012345678901234, role: root}}}",
        "expected viewer, operator",
    ),
    ("limits: {payload_bytes: 1}", "from 1KiB to 1GiB, got 1"),
    ("http: {allow: [10.0.0.0/40]}", "expected an address range"),
    ("allow_commands: some", "expected none, any, or a list"),
    ("display_timezone: PST", "America/Los_Angeles"),
    ("a: 1\n---\nb: 2", "expected one document"),
    ("a: [", "matins.yaml:1:"),
    ("lease: !!int 3", "the tag int is not known here"),
    ("? [a]\n: b", "expected a key that is a word"),
    ("- a", "expected a mapping of keys, got a list"),
    ("just text", "expected a mapping of keys, got just text"),
];

#[test]
fn wrong_values_are_refused_by_name() {
    for (text, expected) in WRONG {
        let told = load(text).expect_err(text).to_string();
        assert!(told.contains(expected), "{text}\n  should say {expected:?}, says:\n{told}");
    }
}

#[test]
fn a_bad_expression_is_pointed_into() {
    let told = error("schedules:\n  s:\n    type: x\n    schedule: \"0 25 * * *\"\n");
    assert!(told.starts_with("matins.yaml:4:18: schedules.s.schedule:"), "{told}");
    assert!(told.contains("|                  ^^"), "{told}");
}

#[test]
fn payloads_keep_every_digit() {
    let config = load(
        r#"
schedules:
  s:
    schedule: "@daily"
    type: x
    payload:
      id: 1970670598291982290
      big: 123456789012345678901234567890
      neg: -9223372036854775808
      d: 0.10
      e: 1E400
      word: no
      text: "7"
      none: null
      on: true
      list: [1, a, {b: ~}]
      1: "键 \" \\ \u0001"
"#,
    )
    .unwrap();
    assert_eq!(
        config.schedules[0].payload.as_str(),
        concat!(
            r#"{"id":1970670598291982290,"big":123456789012345678901234567890,"#,
            r#""neg":-9223372036854775808,"d":0.10,"e":1E400,"word":"no","text":"7","#,
            r#""none":null,"on":true,"list":[1,"a",{"b":null}],"1":"键 \" \\ \u0001"}"#,
        )
    );
}

#[test]
fn anchors_and_merges_are_followed() {
    let config = load(
        "tasks:\n  a: &a {executor: command, command: [ls], timeout: 1m}\n  \
         b: {<<: *a, timeout: 2m}\n",
    )
    .unwrap();
    assert_eq!(config.rules.policy_of("b").timeout, Timeout::After(Duration::from_secs(120)));
    let bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
         c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
         e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
         g: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!(load(bomb).unwrap_err().to_string().contains("more than 2000000 values"));
}

#[test]
fn environment_beats_file_and_flags_beat_both() {
    let env = [("MATINS_STORE", "sqlite:/env.db"), ("MATINS_LEASE", "20s"), ("MATINS_POLL", "")];
    let text = "store: sqlite:file.db\nlease: 10s\npoll: 2s\n";
    let config = load_with(text, &env).unwrap();
    assert_eq!(config.store, StoreLocation::Sqlite("/env.db".into()));
    assert_eq!((config.lease, config.poll), (Duration::from_secs(20), Duration::from_secs(2)));
    assert_eq!(load(text).unwrap().store, StoreLocation::Sqlite("/etc/matins/file.db".into()));

    let told = load_with("", &[("MATINS_LISTEN", "here")]).unwrap_err().to_string();
    assert_eq!(
        told,
        "environment variable MATINS_LISTEN: listen: expected an address and port such as \
         127.0.0.1:6284, got here"
    );
    let sources = Sources {
        flags: vec![("store", "--store", "sqlite:/flag.db".to_owned())],
        ..Sources::default()
    };
    let env = |name: &str| (name == "MATINS_STORE").then(|| "sqlite:/env.db".to_owned());
    let config = sources.read(None, String::new(), &env).unwrap();
    assert_eq!(config.store, StoreLocation::Sqlite("/flag.db".into()));
}

/// What is wrong with a file is said in logs, too.
#[test]
fn a_problem_shows_no_secret_that_stands_beside_it() {
    let config = "alerts: {channels: {ops: {kind: webhook, url: 'https://h/S3KR1T', secret: \
                  秘密S3KR1T, headers: {A: S3KR1T}, quiet: {from: '25:00'}}, bot: {kind: slack, \
                  url: S3KR1T/hook}}}\nstore: postgre://u:S3KR1T@h/d\n";
    let said = error(config);
    assert!(!said.contains("S3KR1T"), "{said}");
    for part in ["got \"25:00\"", "url: ******************, secret: ********,", "store: *****"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(error("store: postgre://h/d").contains("did you mean postgres://h/d?"));
    // What cannot be read at all may be one, too.
    let said = error("auth: {tokens: {a: {token: 'S3KR1T', role: admin}}\nstore: 'S3KR1T\n");
    assert!(!said.contains("S3KR1T"), "{said}");
    assert!(said.contains("store: '******") || said.contains("auth: {******"), "{said}");
}

#[test]
fn commands_that_need_no_secret_do_not_ask_for_it() {
    let text = "tasks: {n: {executor: http, url: 'env:NOWHERE'}}\n\
         auth: {tokens: {a: {token: 'env:NOWHERE', role: admin}}}";
    assert!(load(text).is_err());
    assert!(Sources::default().read(None, text.to_owned(), &|_| None).is_ok());
}

/// The template with every example made real.
pub(super) fn uncommented() -> String {
    let real = |line: &str| match line.strip_prefix('#') {
        Some(rest) if !rest.is_empty() && (!rest.starts_with(' ') || rest.starts_with("  ")) => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    INIT.lines().map(|line| real(line) + "\n").collect()
}

#[test]
fn sql_types_name_a_connection_whose_address_is_never_shown() {
    let text = "\
connections: {shop: 'env:SHOP', local: 'sqlite:shop.db', plain: 'postgresql://u:secret@h/d'}
tasks:
  book: {executor: sql, connection: shop, sql: 'SELECT $1', params: [/a, '']}
";
    let env = |name: &str| (name == "SHOP").then(|| "postgres://ann:secret@h/d".to_owned());
    let sources = Sources { need_secrets: true, ..Sources::default() };
    let config = sources.read(None, text.to_owned(), &env).unwrap();
    assert_eq!(config.rules.connections.len(), 3);
    let shop = format!("{:?}", config.rules.connections["shop"]);
    assert!(!shop.contains("secret"), "{shop}");
    let TypeExecutor::Sql(book) = &config.rules.types["book"].executor else { panic!() };
    assert_eq!((&*book.connection, &*book.sql), ("shop", "SELECT $1"));
    assert_eq!(book.params.as_deref().unwrap(), ["/a", ""]);
    for (text, part) in [
        ("connections: {a: 'mysql://u:secret@h/d'}", "connections.a: expected postgres://"),
        ("connections: {a: 'postgres://u:secret@h:x/d'}", "connections.a: "),
        ("connections: {a: 'sqlite::memory:'}", "connections.a: expected a file name"),
        ("tasks: {x: {executor: sql, sql: SELECT 1}}", "the key connection is missing"),
        ("tasks: {x: {executor: sql, connection: a}}", "the key sql is missing"),
        (
            "tasks: {x: {executor: sql, connection: a, sql: S, params: [a]}}",
            "tasks.x.params[0]: expected a JSON pointer",
        ),
        (
            "tasks: {x: {executor: sql, connection: a, sql: S, url: 'http://h'}}",
            "tasks.x.url: belongs to executor http",
        ),
        ("tasks: {x: {executor: http, url: 'http://h', sql: S}}", "belongs to executor sql"),
    ] {
        let said = load(text).unwrap_err().to_string();
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn what_init_writes_is_valid_with_and_without_its_examples() {
    load(INIT).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("shop.token"), "0123456789abcdef0123456789\n").unwrap();
    let env = |name: &str| name.ends_with(char::is_alphabetic).then(|| "v".repeat(30));
    let env = |name: &str| env(name).filter(|_| !name.starts_with("MATINS_"));
    let sources = Sources { need_secrets: true, ..Sources::default() };
    let file = folder.path().join(FILE_NAME);
    let config = sources.read(Some(&file), uncommented(), &env).unwrap();
    assert_eq!(config.rules.types.len(), 4);
    assert_eq!(config.schedules.len(), 2);
    assert_eq!(config.auth.tokens.len(), 2);
}

#[test]
fn init_names_every_key() {
    for key in reference::TOP.keys {
        let named = INIT.lines().any(|line| {
            let line = line.trim_start_matches('#');
            line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == key.name)
        });
        assert!(named, "{} is not in the template", key.name);
    }
}

/// `UPDATE=1 cargo test` writes it anew.
#[test]
fn the_reference_page_is_up_to_date() {
    let page = reference_page();
    for section in reference::SECTIONS {
        for key in section.keys {
            assert!(page.contains(&format!("| `{}` |", key.name)));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/reference/configuration.md is stale: UPDATE=1 cargo test -p matins-cli"
    );
}

/// What is off has no effect anywhere, so that one file may serve servers with and without Redis.
#[test]
fn a_mirror_that_is_off_needs_no_redis() {
    assert!(load("redis_mirror: off").expect("it is valid").redis.is_none());
}
