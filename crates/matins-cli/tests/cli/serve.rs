use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::{Sandbox, done, until};

#[test]
fn it_works_without_any_configuration() {
    let sandbox = Sandbox::new();
    let begin = Instant::now();
    let server = sandbox.serve(&[]);
    assert!(begin.elapsed() < Duration::from_secs(3), "slow start: {:?}", begin.elapsed());
    for part in
        ["address    http://127.0.0.1:", "token      in ", "no alert channel: nobody will be told"]
    {
        assert!(server.said.contains(part), "{part:?} is not in {}", server.said);
    }
    let token = sandbox.file(".matins/token");
    let mode = std::fs::metadata(&token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let secret = std::fs::read_to_string(&token).unwrap();
    assert!(!server.said.contains(secret.trim()), "a log would keep it");
    assert!(!sandbox.log().contains(secret.trim()));
    let id = sandbox.enqueue(&["command", "--payload", r#"{"argv":["echo","hi"]}"#, "--wait"]);
    assert_eq!(sandbox.task(&id)["state"], "completed");
    assert_eq!(server.stop(), Some(0));
    // The token outlives the server; nobody is found where none is.
    let again = sandbox.serve(&[]);
    assert_eq!(std::fs::read_to_string(&token).unwrap(), secret);
    assert_eq!(again.stop(), Some(0));
    assert!(!sandbox.file(".matins/matins.db.server").exists());
}

#[test]
fn a_second_server_on_the_same_file_is_refused() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve(&[]);
    let refused = sandbox.matins(&["serve", "--listen", "127.0.0.1:0"]).fails_with(1);
    refused.complains(&format!("already: process {}", sandbox.served_by()));
    let link = sandbox.file("other.db");
    std::os::unix::fs::symlink(sandbox.file(".matins/matins.db"), &link).unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", "sqlite:other.db"];
    sandbox.matins(&args).fails_with(1).complains("already: process");
    drop(server);
    // Killed, not stopped: the kernel has released the lock.
    assert_eq!(sandbox.serve(&[]).stop(), Some(0));
}

#[test]
fn a_taken_port_and_an_open_address_are_refused() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = sandbox.matins(&["serve", "--listen", &address]).fails_with(1);
    refused.complains(&format!("cannot listen on {address}")).complains("--listen");
    let refused = sandbox.matins(&["serve", "--listen", "0.0.0.0:0"]).fails_with(2);
    refused.complains("not loopback").complains("auth.tokens");
    sandbox.write(
        "matins.yaml",
        "auth: {tokens: {a: {token: aaaaaaaaaaaaaaaaaaaaaaaa, role: admin}}}",
    );
    sandbox.matins(&["serve", "--listen", "0.0.0.0:0"]).fails_with(2).complains("too weak");
}

#[test]
fn term_drains_and_nothing_counts_as_failed() {
    let sandbox = Sandbox::with_config(
        "drain_timeout: 2s\ndefaults: {grace: 500ms}\ntasks:
  quick: {executor: command, shell: \"sleep 0.5; echo done\"}
  slow: {executor: command, shell: \"sleep 60\"}\n",
    );
    let server = sandbox.serve(&[]);
    let (quick, slow) = (sandbox.enqueue(&["quick"]), sandbox.enqueue(&["slow"]));
    sandbox.until_state(&slow, "running");
    sandbox.until_state(&quick, "running");
    let begin = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert_eq!(sandbox.task(&quick)["state"], "completed");
    let task = sandbox.task(&slow);
    assert_eq!((&task["state"], &task["retries"]), (&"pending".into(), &0.into()));
    assert_eq!((&task["interruptions"], &task["losses"]), (&1.into(), &0.into()));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let sandbox = Sandbox::with_config("tasks: {slow: {executor: command, shell: \"sleep 60\"}}");
    let server = sandbox.serve(&[]);
    let slow = sandbox.enqueue(&["slow"]);
    sandbox.until_state(&slow, "running");
    server.signal("INT");
    until(|| sandbox.log().contains("draining").then_some(()));
    let begin = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(sandbox.task(&slow)["state"], "pending");
}

#[test]
fn hangup_reads_the_file_again_and_keeps_the_old_one_if_it_is_bad() {
    let sandbox = Sandbox::with_config(
        "tasks: {old: {executor: command, command: [echo, old]}}
schedules: {a: {schedule: \"0 0 1 1 *\", type: old}}\n",
    );
    let server = sandbox.serve(&[]);
    sandbox.write("matins.yaml", "tasks: {old: {executor: comand}}\n");
    server.signal("HUP");
    until(|| sandbox.log().contains("the configuration stays as it was").then_some(()));
    assert!(sandbox.log().contains("did you mean command?"), "{}", sandbox.log());
    // Whoever reads the file is told; the server goes on with what it had.
    sandbox.matins(&["list"]).fails_with(2).complains("did you mean command?");
    assert!(!sandbox.enqueue(&["old", "--wait", "--server", &server.url]).is_empty());

    sandbox.write(
        "matins.yaml",
        "tasks: {new: {executor: command, command: [echo, new]}}
task_pools: {p: {max_workers: 1, task_types: [new]}}
schedules: {b: {schedule: \"0 0 1 1 *\", type: new}}
lease: 20s\n",
    );
    let waiting = sandbox.enqueue(&["new"]);
    server.signal("HUP");
    sandbox.until_state(&waiting, "completed");
    until(|| sandbox.log().contains("the configuration is read again").then_some(()));
    assert!(sandbox.log().contains("takes effect with the next start"), "{}", sandbox.log());
    let list = sandbox.matins(&["schedule", "list", "--json"]).json();
    let states: Vec<(&str, &str)> = list["schedules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["name"].as_str().unwrap(), s["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [("a", "disabled"), ("b", "active")]);
    sandbox.matins(&["schedule", "set", "b", "--cron", "@daily", "--type", "new"]).fails_with(1);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn what_people_changed_survives_a_restart_with_the_same_file() {
    let sandbox = Sandbox::with_config(
        "node_id: n1\ntasks: {t: {executor: command, command: [echo]}}
schedules: {s: {schedule: \"0 0 1 1 *\", type: t}}\n",
    );
    assert_eq!(sandbox.serve(&[]).stop(), Some(0));
    sandbox.matins(&["schedule", "pause", "s", "--note", "by hand"]).succeeds();
    assert_eq!(sandbox.serve(&[]).stop(), Some(0));
    let shown = sandbox.matins(&["schedule", "show", "s", "--json"]).json();
    assert_eq!(shown["state"], "paused");
}

#[test]
fn paused_means_that_nothing_runs_until_thawed() {
    let sandbox = Sandbox::with_config("tasks: {t: {executor: command, command: [echo]}}");
    let id = sandbox.enqueue(&["t"]);
    let server = sandbox.serve(&["--paused"]);
    assert!(server.said.contains("until matins thaw"), "{}", server.said);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(sandbox.task(&id)["state"], "pending");
    sandbox.matins(&["why", &id]).succeeds().says("frozen");
    sandbox.matins(&["thaw"]).succeeds();
    sandbox.until_state(&id, "completed");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn roles_divide_the_work() {
    let sandbox = Sandbox::with_config("tasks: {t: {executor: command, command: [echo]}}");
    let server = sandbox.serve(&["--role", "api", "--node-id", "front", "--no-supervise"]);
    let id = sandbox.enqueue(&["t"]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sandbox.task(&id)["state"], "pending");
    assert!(server.said.contains("node       front"), "{}", server.said);
    assert_eq!(server.stop(), Some(0));
    sandbox.matins(&["serve", "--role", "cook"]).fails_with(2).complains("api, scheduler, worker");
}

#[test]
fn the_log_is_json_when_asked_and_holds_no_secret() {
    let sandbox = Sandbox::with_config(
        "listen: 127.0.0.1:0\nlog: {format: json, level: debug}
tasks: {t: {executor: command, shell: 'echo $KEY', env: {KEY: env:THE_KEY}}}\n",
    );
    let mut command = sandbox.command(&["serve"]);
    command.env("THE_KEY", "S3KR1T-42");
    let log = std::fs::File::create(sandbox.file("serve.log")).unwrap();
    let mut child = command.stderr(log).stdout(std::process::Stdio::null()).spawn().unwrap();
    until(|| sandbox.log().contains("\"ready\"").then_some(()));
    let id = sandbox.enqueue(&["t", "--wait"]);
    crate::sandbox::kill(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    let log = sandbox.log();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for field in ["timestamp", "level", "target", "message"] {
            assert!(event[field].is_string(), "{field} in {line}");
        }
    }
    let token = std::fs::read_to_string(sandbox.file(".matins/token")).unwrap();
    let shown = sandbox.matins(&["show", &id, "--json"]).out;
    for (place, text) in [("log", &log), ("task", &shown)] {
        assert!(!text.contains("S3KR1T-42") && !text.contains(token.trim()), "{place}: {text}");
    }
}

#[test]
fn health_is_open_and_systemd_is_told() {
    let sandbox = Sandbox::new();
    let socket = sandbox.file("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(crate::sandbox::PATIENCE)).unwrap();
    let mut command = sandbox.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &socket).stdout(std::process::Stdio::null());
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let told = |word: &str| {
        until(|| {
            let mut buffer = [0; 1_024];
            let size = listener.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..size]).contains(word).then_some(())
        });
    };
    told("READY=1");
    let server = std::fs::read_to_string(sandbox.file(".matins/matins.db.server")).unwrap();
    let url: Value = serde_json::from_str(&server).unwrap();
    let address = url["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(stream, "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"ok\""), "{answer}");
    crate::sandbox::kill(child.id(), "TERM");
    told("STOPPING=1");
    assert!(child.wait().unwrap().success());
}

#[test]
fn output_is_followed_while_it_is_written() {
    let sandbox = Sandbox::with_config(
        "tasks:
  t: {executor: command, shell: 'echo one; sleep 0.3; printf \"\\\\377\\\\n\"; echo 二'}\n",
    );
    let server = sandbox.serve(&[]);
    let id = sandbox.enqueue(&["t", "--in", "300ms"]);
    let output = sandbox.command(&["output", "-f", &id]).output().unwrap();
    assert_eq!(output.stdout, b"one\n\xff\n\xe4\xba\x8c\n");
    done(&output).succeeds().complains("the task is completed");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_one_shot_of_the_past_in_the_file_is_warned_about_and_stops_nobody() {
    let sandbox = Sandbox::with_config(
        "schedules:\n  gone: {schedule: \"@at 2020-01-01T09:00\", type: command}\n",
    );
    let warning = "will never fire again: it starts nothing";
    sandbox.matins(&["check"]).succeeds().says(warning);
    let server = sandbox.serve(&[]);
    let shown = sandbox.matins(&["schedule", "show", "gone", "--json"]).succeeds().json();
    assert_eq!(shown["state"], "exhausted");
    assert!(sandbox.log().contains(warning), "{}", sandbox.log());
    assert_eq!(server.stop(), Some(0));
    sandbox.write("matins.yaml", "schedules:\n  no: {schedule: \"0 0 30 2 *\", type: command}\n");
    for command in ["check", "serve"] {
        let told = sandbox.matins(&[command]).fails_with(2);
        told.complains("matins.yaml:2:").complains("can never fire");
    }
}
