//! A configuration that is damaged in any way is refused with a place, or can be used; reading it
//! never panics, never takes long and says the same every time. `MATINS_FUZZ_SECONDS=60` is the
//! long form.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;

/// Long enough for a busy machine, short enough for anything that grows with its input.
const LIMIT: Duration = Duration::from_secs(5);

const EVERYTHING_ELSE: &str = r#"
store: "sqlite:a.db"
listen: 127.0.0.1:7000
allowed_hosts: [a.example, "b.example:80"]
log: {format: json, level: debug}
defaults: &policy {timeout: none, grace: 5s, max_retries: 2, backoff: {initial: 1s, factor: 2.5}}
task_pools: {io: {max_workers: 20, task_types: [http_call]}, cpu: {max_workers: 4, task_types: []}}
tasks:
  a: {executor: command, command: [ls, -l], env: {A: b}, permanent_exit_codes: [3, 78]}
  b: {<<: *policy, executor: command, shell: "echo $A | wc", memory_max: 1GiB, rate_limit: 5/m}
  c: {executor: http, url: "http://10.0.0.1/x?y", method: PUT, headers: {X-Key: &x "k"}}
schedules:
  odd: {schedule: "30 2 LW * MON#2", timezone: america/new_york, type: a, payload: *x}
  even:
    schedule: "@every 1h30m"
    type: b
    payload: {text: "{{ occurrence.date | add('-1d') }}", big: 18446744073709551617, none: ~}
    execution_key: "k-{{ occurrence.key }}"
    dst: {gap: skip, fold: both}
    blackout: [{from: "22:00", to: "06:00"}]
    tags: [x, y]
    overlap: buffer_all
    start: 2026-01-01T00:00:00Z
    note: |
      one
      two
auth: {tokens: {ops: {token: "0123456789abcdef0123456789", role: operator}}, metrics: public}
http: {allow: [10.0.0.0/8, "fd00::/8"], redirects: 2}
allow_commands: [command]
retention: {completed: 7d, ledger: forever}
limits: {payload_bytes: 1MiB}
"#;

#[test]
fn damaged_configurations() {
    let uncommented = tests::uncommented();
    let seeds: [&[u8]; 6] = [
        EVERYTHING_ELSE.as_bytes(),
        INIT.as_bytes(),
        uncommented.as_bytes(),
        include_bytes!("../../../../examples/matins.yaml"),
        b"task_pools: {io_pool: {max_workers: 20, task_types: [http_call, db_query]}}",
        b"schedules: {tick: {schedule: \"* * * * * *\", type: quick}}",
    ];
    tests::load(EVERYTHING_ELSE).expect("a seed of which everything is read");
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    matins_fuzz::fuzz(&seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let began = Instant::now();
        match tests::load(text) {
            Ok(config) => {
                lint(&config, now);
                let again = tests::load(text).unwrap();
                assert_eq!(format!("{config:?}"), format!("{again:?}"));
            }
            Err(error) => {
                let told = error.to_string();
                assert!(told.starts_with("/etc/matins/matins.yaml:"), "{told}");
                assert_eq!(told, tests::load(text).unwrap_err().to_string());
            }
        }
        assert!(began.elapsed() < LIMIT, "took {:?}", began.elapsed());
    });
}
