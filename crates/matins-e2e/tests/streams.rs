//! Long answers and long connections: followed output, events, kept connections, bodies in pieces.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use matins_e2e::process::{self, Signal};
use matins_e2e::server::exit_code;
use matins_e2e::wait::seconds;
use matins_e2e::{Request, Response, Server, json, wait_for};

/// Output is followed from its beginning to its end, as it comes, and the stream ends by itself.
#[test]
fn output_is_followed_to_its_end() {
    let server = Server::with("");
    let api = server.api();
    let id = api.shell("echo first; sleep 1; echo second; sleep 1; echo third", &json!({}));
    let id = id.id().to_owned();
    thread::sleep(seconds(0.5));
    let request = api.request("GET", &format!("/tasks/{id}/output?follow=1"));
    let begin = Instant::now();
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    stream.write_all(&request.bytes(server.address())).expect("sent");
    stream.set_read_timeout(Some(seconds(10.0))).expect("set");
    let mut early = vec![0; 65_536];
    let mut seen = Vec::new();
    while !contains(&seen, "first") {
        let length = stream.read(&mut early).expect("read");
        assert!(length > 0, "ended early: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&early[..length]);
    }
    assert!(begin.elapsed() < seconds(1.0), "the first line came after {:?}", begin.elapsed());
    assert!(!contains(&seen, "third"));
    stream.read_to_end(&mut seen).expect("the stream ends by itself");
    assert!(begin.elapsed() < seconds(4.0), "it ended after {:?}", begin.elapsed());
    let text = String::from_utf8_lossy(&seen).into_owned();
    assert!(text.contains("text/event-stream"), "{text}");
    for word in ["first", "second", "third"] {
        assert_eq!(text.matches(word).count(), 1, "{word} in {text}");
    }
    // The same from the command line, and for a task that has ended.
    for arguments in [["output", &id, "-f"], ["output", &id, "--json"]] {
        let output = server.cli(&arguments).expect(0);
        assert!(output.out().contains("third"), "{arguments:?}: {}", output.out());
    }
}

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// Listeners that never read, and those that go away, hold up nobody.
#[test]
fn events_and_listeners_that_do_not_read() {
    let server = Server::with("");
    let api = server.api();
    let listen = || {
        let request = api.request("GET", "/events");
        let mut stream = TcpStream::connect(server.address()).expect("connected");
        stream.write_all(&request.bytes(server.address())).expect("sent");
        stream.set_read_timeout(Some(seconds(5.0))).expect("set");
        stream
    };
    let silent: Vec<TcpStream> = (0..50).map(|_| listen()).collect();
    let mut reader = listen();
    drop(listen());
    thread::sleep(seconds(0.3));
    let id = api.shell("true", &json!({})).id().to_owned();
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    let begin = Instant::now();
    while !(contains(&seen, "task.settled") && contains(&seen, &id)) {
        assert!(begin.elapsed() < seconds(5.0), "{}", String::from_utf8_lossy(&seen));
        let length = reader.read(&mut piece).expect("read");
        seen.extend_from_slice(&piece[..length]);
    }
    let batch: Vec<_> = (0..3000).map(|n| json!({"type": "nobody", "payload": n})).collect();
    for _ in 0..5 {
        api.post("/tasks/batch", &json!(batch)).expect(200);
    }
    let begin = Instant::now();
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", seconds(3.0));
    assert!(begin.elapsed() < seconds(2.0), "{:?}", begin.elapsed());
    drop(silent);
    server.assert_no_panic();
}

/// Several requests on one connection, a body in pieces, one with `Expect`, and HEAD.
#[test]
fn connections_are_kept_and_bodies_come_in_pieces() {
    let server = Server::with("");
    let api = server.api();
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    stream.set_read_timeout(Some(seconds(5.0))).expect("set");
    let mut from = BufReader::new(stream.try_clone().expect("cloned"));
    for _ in 0..3 {
        let request = api.request("GET", "/status").header("connection", "keep-alive");
        stream.write_all(&request.bytes(server.address())).expect("sent");
        Response::read(&mut from).expect("an answer").expect(200);
    }
    let head = api
        .request("POST", "/tasks")
        .header("connection", "keep-alive")
        .header("content-type", "application/json")
        .header("transfer-encoding", "chunked");
    stream.write_all(&head.bytes(server.address())).expect("sent");
    for piece in ["{\"type\":", "\"nobody\",\"pay", "load\":[1,2", ",3]}"] {
        write!(stream, "{:x}\r\n{piece}\r\n", piece.len()).expect("sent");
        thread::sleep(seconds(0.05));
    }
    stream.write_all(b"0\r\n\r\n").expect("sent");
    let task = Response::read(&mut from).expect("an answer").expect(201).json();
    assert_eq!(task["payload"], json!([1, 2, 3]));

    // A body without a length that goes on for ever is cut off, and not kept meanwhile.
    let head = api
        .request("POST", "/tasks")
        .header("content-type", "application/json")
        .header("transfer-encoding", "chunked");
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    stream.set_read_timeout(Some(seconds(10.0))).expect("set");
    stream.set_write_timeout(Some(seconds(10.0))).expect("set");
    stream.write_all(&head.bytes(server.address())).expect("sent");
    let block = vec![b'x'; 65_536];
    let (mut sent, mut resident) = (0_u64, 0);
    while sent < 512 << 20 {
        if sent.is_multiple_of(8 << 20) {
            resident = resident.max(resident_bytes(&server));
        }
        if write!(stream, "{:x}\r\n", block.len()).is_err()
            || stream.write_all(&block).is_err()
            || stream.write_all(b"\r\n").is_err()
        {
            break;
        }
        sent += block.len() as u64;
    }
    assert!(sent < 512 << 20, "it took {sent} bytes of one task");
    assert!(resident < 150 << 20, "{} MiB resident", resident >> 20);
    if let Ok(answer) = Response::read(&mut BufReader::new(stream)) {
        assert!(matches!(answer.status, 400 | 413), "{} {}", answer.status, answer.text());
    }
    api.get("/status").expect(200);
}

/// A gigabyte that is announced and does not come costs nothing.
#[test]
fn announced_sizes_are_judged_before_they_come() {
    let server = Server::with("");
    let api = server.api();
    for (path, length) in [("/tasks", "1073741824"), ("/tasks/batch", "10737418240")] {
        let request = api
            .request("POST", path)
            .header("content-type", "application/json")
            .header("content-length", length)
            .timeout(seconds(10.0));
        let answer = request.send(server.address()).expect("an answer");
        assert_eq!(answer.status, 413, "{path}: {}", answer.text());
        assert_eq!(answer.problem(), "too_large");
    }
    let resident = resident_bytes(&server);
    assert!(resident < 150 << 20, "{} MiB resident", resident >> 20);
}

fn resident_bytes(server: &Server) -> u64 {
    process::of(server.pid()).expect("it runs").resident_bytes
}

/// SIGINT is SIGTERM; a signal while starting ends it; a token that exists is used again.
#[test]
fn signals_and_tokens_over_starts() {
    let mut server = Server::with("");
    let token = server.token();
    server.signal(Signal::INT);
    assert_eq!(exit_code(server.wait_exit(seconds(5.0))), 0);
    for wait in [0, 3, 10, 30, 60, 120] {
        server.spawn();
        thread::sleep(std::time::Duration::from_millis(wait));
        server.signal(Signal::TERM);
        let status = server.wait_exit(seconds(5.0));
        assert!(matches!(exit_code(status), 0 | 143), "{status} after {wait} ms");
    }
    server.start();
    assert_eq!(server.token(), token);
    server.api().get("/status").expect(200);
    // Port taken: said, and not served.
    let second = Server::builder().prepare();
    std::fs::write(second.config_file(), format!("listen: 127.0.0.1:{}\n", server.port))
        .expect("written");
    let output = second.cli(&["serve", "--no-supervise"]);
    assert!(matches!(output.code, 1 | 4), "{}", output.code);
    assert!(output.err().contains(&server.port.to_string()), "{}", output.err());
    assert!(wait_for(seconds(0.1), || server.ready().then_some(())).is_some());
    let open = Request::new("GET", "/api/v1/status").send(server.address()).expect("an answer");
    assert_eq!(open.status, 401);
}
