//! `matins run -- CMD`: a durable command that behaves like the command itself.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use matins_e2e::process::{self, Signal};
use matins_e2e::server::exit_code;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Task, eventually, wait_for};

/// Each check on a store without a server, and with a live one.
fn both(check: fn(&Server, &str)) {
    thread::scope(|scope| {
        for serving in [false, true] {
            scope.spawn(move || {
                let mut server = Server::builder().config("defaults: {grace: 1s}").prepare();
                if serving {
                    server.start();
                }
                let way = if serving { "with a server" } else { "without a server" };
                check(&server, way);
                server.assert_no_workers(seconds(2.0));
            });
        }
    });
}

fn run(server: &Server, arguments: &[&str]) -> matins_e2e::CliOutput {
    let mut words = vec!["run"];
    words.extend(arguments);
    server.cli(&words)
}

#[test]
fn streams_and_exit_codes() {
    both(|server, way| {
        let output = run(server, &["--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
        assert_eq!(output.code, 7, "{way}: {}", output.err());
        assert_eq!(output.out(), "out\n", "{way}");
        assert!(output.err().contains("err\n"), "{way}: {:?}", output.err());
        assert_eq!(run(server, &["--", "true"]).code, 0, "{way}");
        assert_eq!(run(server, &["--", "sh", "-c", "kill -9 $$"]).code, 137, "{way}");
        assert_eq!(run(server, &["--", "sh", "-c", "kill -TERM $$"]).code, 143, "{way}");
        let begin = Instant::now();
        assert_eq!(run(server, &["--timeout", "1s", "--", "sleep", "60"]).code, 124, "{way}");
        assert!(begin.elapsed() < seconds(5.0), "{way}: {:?}", begin.elapsed());
        let missing = run(server, &["--", "/no/such/program"]);
        assert!(matches!(missing.code, 125..=127), "{way}: {}", missing.code);
        assert!(!missing.err().is_empty(), "{way}");
        assert_eq!(run(server, &[]).code, 125, "{way}: nothing to run is an error of our own");
        assert_eq!(run(server, &["--timeout", "soon", "--", "true"]).code, 125, "{way}");
        let bytes = run(server, &["--", "printf", "a\\000\\377b"]);
        assert_eq!(bytes.stdout, b"a\0\xffb", "{way}: bytes pass unchanged");
        let odd = run(server, &["--", "printf", "%s|", "a b", "", "*", "--key", "ü'\""]);
        assert_eq!(odd.out(), "a b||*|--key|ü'\"|", "{way}: arguments pass unchanged");
    });
}

#[test]
fn large_output_is_complete() {
    both(|server, way| {
        let text = "i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done";
        let output = run(server, &["--", "sh", "-c", text]).expect(0);
        let lines = output.out().lines().count();
        if way == "with a server" && lines < 30_000 {
            // It follows what the server keeps of it, and says what it could not show.
            assert!(output.err().contains("too fast"), "{way}: {lines} lines: {}", output.err());
            return;
        }
        assert_eq!(lines, 30_000, "{way}: {} bytes", output.stdout.len());
        assert!(output.out().ends_with("line 29999\n"), "{way}");
    });
}

#[test]
fn output_comes_while_it_runs() {
    both(|server, way| {
        let mut command = server.command();
        command.args(["run", "--", "sh", "-c", "echo first; sleep 3; echo second"]);
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "first", "{way}");
        assert!(begin.elapsed() < seconds(2.0), "{way}: first after {:?}", begin.elapsed());
        assert_eq!(lines.next().expect("a line").expect("text"), "second", "{way}");
        assert!(begin.elapsed() > seconds(2.8), "{way}");
        assert!(child.wait().expect("ended").success(), "{way}");
    });
}

#[test]
fn a_key_runs_once() {
    both(|server, way| {
        let work = server.witness.shell("echo \"day $MATINS_EXECUTION_KEY\"");
        let first = run(server, &["--key", "day-1", "--", "sh", "-c", &work]).expect(0);
        assert_eq!(first.out(), "day day-1\n", "{way}");
        let second = run(server, &["--key", "day-1", "--", "sh", "-c", &work]).expect(0);
        assert_eq!(server.witness.begun(), 1, "{way}: {}", second.err());
        assert!(!second.err().is_empty(), "{way}: it says that it did not run");
        let failing = server.witness.shell("exit 5");
        assert_eq!(run(server, &["--key", "day-2", "--", "sh", "-c", &failing]).code, 5, "{way}");
        run(server, &["--key", "day-2", "--", "sh", "-c", &work]).expect(0);
        assert_eq!(server.witness.ended(), 2, "{way}: a failure does not take the key");

        thread::scope(|scope| {
            let slow = server.witness.shell("sleep 1; echo '\"shared\"'");
            for _ in 0..6 {
                let slow = slow.clone();
                scope.spawn(move || {
                    let output = run(server, &["--key", "race", "--", "sh", "-c", &slow]);
                    assert_eq!(output.code, 0, "{way}: {}", output.err());
                });
            }
        });
        let races = server.witness.marks().iter().filter(|m| m.key == "race").count();
        assert_eq!(races, 2, "{way}: one begin and one end");
        server.witness.assert_no_overlap();
    });
}

#[test]
fn ctrl_c_cancels() {
    both(|server, way| {
        let mut command = server.command();
        let work = server.witness.shell("setsid sleep 300 & sleep 301");
        command.args(["run", "--", "sh", "-c", &work]).stdout(Stdio::null());
        let mut child = command.spawn().expect("started");
        eventually("it runs", seconds(10.0), || {
            (server.witness.begun() == 1 && server.workers().len() > 2).then_some(())
        });
        let begin = Instant::now();
        process::signal(child.id(), Signal::INT);
        let ended = wait_for(seconds(6.0), || child.try_wait().expect("waited"));
        let _ = child.kill();
        let status = ended.unwrap_or_else(|| panic!("{way}: ctrl-c was ignored"));
        assert_eq!(exit_code(status), 130, "{way}");
        assert!(begin.elapsed() < seconds(4.0), "{way}: {:?}", begin.elapsed());
        server.assert_no_workers(seconds(1.0));
        let id = server.witness.marks()[0].task.clone();
        let task = Task(server.cli(&["show", &id, "--json"]).expect(0).json());
        assert_eq!(task.state(), "cancelled", "{way}: {:#}", task.0);
    });
}

/// The command line is killed: with a server the work goes on, without one its tree ends and the
/// task waits for a server.
#[test]
fn the_command_line_is_killed() {
    both(|server, way| {
        let serving = way == "with a server";
        let mut command = server.command();
        let work = server.witness.shell("sleep 3");
        command.args(["run", "--", "sh", "-c", &work]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("started");
        let id = eventually("it runs", seconds(10.0), || {
            server.witness.marks().first().map(|mark| mark.task.clone())
        });
        child.kill().expect("killed");
        child.wait().expect("ended");
        if serving {
            let task = server.api().wait_end(&id, seconds(8.0));
            assert_eq!((task.state(), task.number("attempt")), ("completed", 1), "{:#}", task.0);
        } else {
            server.assert_no_workers(seconds(2.0));
            let task = Task(server.cli(&["show", &id, "--json"]).expect(0).json());
            assert!(!task.ended(), "it is kept for a server: {:#}", task.0);
        }
    });
}

#[test]
fn a_killed_one_task_worker_is_taken_over_by_a_server() {
    let mut server = Server::builder().config("lease: 3s").prepare();
    let mut command = server.command();
    let work = server.witness.shell("[ $MATINS_ATTEMPT = 1 ] && sleep 60; true");
    command.args(["run", "--", "sh", "-c", &work]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("started");
    let id = eventually("it runs", seconds(10.0), || {
        server.witness.marks().first().map(|mark| mark.task.clone())
    });
    child.kill().expect("killed");
    child.wait().expect("ended");
    server.start();
    let task = server.api().wait_end(&id, seconds(15.0));
    assert_eq!(task.number("losses"), 1, "{:#}", task.0);
    server.witness.assert_no_overlap();
}

/// The server under it is killed and comes back, or is restarted: the command line waits for the
/// end of its command, and its exit code is that of the run that counted.
#[test]
fn the_server_of_a_run_is_restarted() {
    for graceful in [false, true] {
        let mut server = Server::with("drain_timeout: 1s\ndefaults: {grace: 300ms}\n");
        let mut command = server.command();
        let work = server.witness.shell("[ $MATINS_ATTEMPT != 1 ] || sleep 60; echo good; exit 6");
        command.args(["run", "--", "sh", "-c", &work]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
        eventually("it runs", seconds(10.0), || (server.witness.begun() == 1).then_some(()));
        if graceful {
            server.stop(seconds(5.0));
        } else {
            server.kill();
        }
        thread::sleep(seconds(1.0));
        server.start();
        let ended = wait_for(seconds(15.0), || child.try_wait().expect("waited"));
        let _ = child.kill();
        let status = ended.unwrap_or_else(|| panic!("graceful {graceful}: it waits for ever"));
        let mut out = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("read");
        assert_eq!((exit_code(status), out.as_str()), (6, "good\n"), "graceful {graceful}");
        assert_eq!(server.witness.begun(), 2, "graceful {graceful}");
        server.witness.assert_no_overlap();
    }
}

#[test]
fn environment_detach_and_other_servers() {
    let server = Server::with("");
    let mut command = server.command();
    command.env("E2E_GIVEN", "from here").env("E2E_HIDDEN", "not this");
    command.args([
        "run",
        "--env",
        "E2E_GIVEN",
        "--",
        "sh",
        "-c",
        "echo \"$E2E_GIVEN|$E2E_HIDDEN\"",
    ]);
    let output = matins_e2e::server::run(command, b"").expect(0);
    assert_eq!(output.out(), "from here|\n");

    let begin = Instant::now();
    let work = server.witness.shell("sleep 1.5");
    let output = run(&server, &["--detach", "--json", "--", "sh", "-c", &work]).expect(0);
    assert!(begin.elapsed() < seconds(1.4), "{:?}", begin.elapsed());
    let id = Task(output.json()).id().to_owned();
    server.api().wait_state(&id, "completed", seconds(8.0));
    assert_eq!(server.witness.ended(), 1);

    let output = server.cli_over_http(&["run", "--", "sh", "-c", "echo far; exit 4"]);
    assert_eq!((output.code, output.out().as_str()), (4, "far\n"), "{}", output.err());
    let none = server.cli(&["--server", "http://127.0.0.1:1", "run", "--", "true"]);
    assert_eq!(none.code, 125, "{}", none.err());

    // A reader that goes away does not take the work with it.
    let mut command: Command = server.command();
    let work = server.witness.shell("yes | head -c 3000000; sleep 1");
    command.args(["run", "--", "sh", "-c", &work]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("started");
    let mut few = [0; 10];
    child.stdout.take().expect("a pipe").read_exact(&mut few).expect("read");
    let ended = wait_for(seconds(10.0), || child.try_wait().expect("waited"));
    assert!(ended.is_some(), "it hangs on a closed pipe");
    assert!(server.api().get("/status").expect(200).json().is_object());
}
