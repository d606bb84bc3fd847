//! Output and results: nothing blocks, nothing grows, every byte kept is the byte written.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use matins_runtime::process::{End, ResultFrom, Stream};
use rustix::process::Signal;

use crate::witness::{Token, argv, block_on, children, run, runner, shell, signal, text};

crate::cases![
    a_flood_on_both_streams_is_drained_in_flat_memory,
    a_flood_is_drained_while_matins_does_not_read,
    output_is_kept_in_order_of_arrival,
    bytes_that_are_not_text_are_kept,
    followers_see_output_before_the_end,
    a_stranger_that_holds_the_pipe_does_not_delay_the_end,
    the_result_is_the_last_json_line,
    the_result_survives_a_cap_on_the_output,
    the_result_may_be_all_of_stdout_or_nothing,
    a_result_over_the_limit_is_counted,
    secrets_are_masked_in_output_and_result,
];

fn memory(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or("x 0 kB");
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

const FLOOD: &str = "(head -c 200000000 /dev/zero | tr '\\0' x; echo; echo '{\"n\":1}') & \
     (head -c 200000000 /dev/zero | tr '\\0' y >&2) & wait";

fn a_flood_on_both_streams_is_drained_in_flat_memory() {
    let own = std::process::id();
    let before = memory(own, "VmHWM");
    let waiting = std::thread::spawn(|| run(shell(FLOOD)));
    let mut runner_peak = 0;
    while !waiting.is_finished() {
        for (pid, _) in children(own as i32) {
            runner_peak = runner_peak.max(memory(pid as u32, "VmHWM"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let exit = waiting.join().unwrap();
    assert_eq!(exit.end, End::Exited(0));
    assert_eq!(exit.output.total, 400_000_009);
    assert_eq!((exit.output.head.len(), exit.output.tail.len()), (16 << 10, 48 << 10));
    assert_eq!(exit.output.dropped(), 400_000_009 - (64 << 10));
    assert_eq!(exit.result.bytes, b"{\"n\":1}");
    let grown = memory(own, "VmHWM") - before;
    assert!(grown < 30_000, "Matins grew by {grown} kB");
    assert!(runner_peak > 0 && runner_peak < 40_000, "the runner grew to {runner_peak} kB");
}

fn a_flood_is_drained_while_matins_does_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let spec = shell(&format!("head -c 20000000 /dev/zero; echo done > {}", done.display()));
    block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        // Nobody awaits it: nothing is read, and the command ends all the same.
        crate::witness::eventually("the command ends", || done.exists());
        let mut live = 0;
        let exit = running.wait(|_, bytes| live += bytes.len()).await;
        assert_eq!(exit.end, End::Exited(0));
        assert_eq!(exit.output.total, 20_000_000);
        assert!(live < 3_000_000, "kept {live} bytes for a reader that did not come");
    });
}

fn output_is_kept_in_order_of_arrival() {
    let exit = run(shell("for i in 1 2 3; do echo o$i; sleep 0.2; echo e$i >&2; sleep 0.2; done"));
    assert_eq!(text(&exit), "o1\ne1\no2\ne2\no3\ne3\n");
}

fn bytes_that_are_not_text_are_kept() {
    let script = r"printf 'ok \377\376 \303 end\n'; printf '\304\343\272\303 GBK\n'; printf '\303'; \
        sleep 0.1; printf '\251 \033[31mred\033[0m \000 nul\n'";
    let exit = run(shell(script));
    let expected =
        b"ok \xff\xfe \xc3 end\n\xc4\xe3\xba\xc3 GBK\n\xc3\xa9 \x1b[31mred\x1b[0m \x00 nul\n";
    assert_eq!(exit.end, End::Exited(0));
    assert_eq!(exit.output.bytes(), expected);
}

fn followers_see_output_before_the_end() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let follower = Arc::clone(&seen);
    let started = Instant::now();
    block_on(async {
        let running = runner().spawn(shell("echo one; sleep 0.5; echo two >&2")).await.unwrap();
        running
            .wait(move |stream, bytes: &[u8]| {
                follower.lock().unwrap().push((stream, bytes.to_vec(), started.elapsed()));
            })
            .await
    });
    let seen = seen.lock().unwrap();
    let told: Vec<_> = seen.iter().map(|(stream, bytes, _)| (*stream, &bytes[..])).collect();
    assert_eq!(told, [(Stream::Out, &b"one\n"[..]), (Stream::Err, b"two\n")]);
    assert!(seen[1].2 > seen[0].2 + Duration::from_millis(300), "all came at the end");
}

/// A daemon that was started before and got hold of the pipe is not ours to end or to wait for.
fn a_stranger_that_holds_the_pipe_does_not_delay_the_end() {
    let token = Token::new();
    let mut stranger = std::process::Command::new("sleep").arg(&token.0).spawn().unwrap();
    let started = Instant::now();
    // Opening the descriptor through /proc gives this test process a handle on the same pipe.
    let exit = block_on(async {
        let spec = shell("echo out; sleep 0.5; exit 0");
        let running = runner().spawn(spec).await.unwrap();
        let task = tokio::spawn(running.wait(|_, _| ()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let runner = children(std::process::id() as i32)
            .into_iter()
            .find(|(pid, _)| *pid != stranger.id() as i32)
            .unwrap()
            .0;
        let command = children(runner)[0].0;
        let held =
            fs::OpenOptions::new().write(true).open(format!("/proc/{command}/fd/1")).unwrap();
        let exit = task.await.unwrap();
        drop(held);
        exit
    });
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(0), "out\n".into()));
    signal(stranger.id() as i32, Signal::KILL);
    stranger.wait().unwrap();
}

fn the_result_is_the_last_json_line() {
    for (script, expected) in [
        (r#"echo log; echo '{"a":1}'"#, r#"{"a":1}"#),
        (r#"echo '{"a":1}'; echo; echo '  '"#, r#"{"a":1}"#),
        ("printf '[1,2]'", "[1,2]"),
        (r#"echo '{"a":1}'; echo '{"b":2}' >&2"#, r#"{"a":1}"#),
        ("echo not json", "not json"),
        ("true", ""),
    ] {
        let exit = run(shell(script));
        assert_eq!(String::from_utf8_lossy(&exit.result.bytes), expected, "{script}");
    }
}

fn the_result_survives_a_cap_on_the_output() {
    let mut spec = shell(
        "head -c 100000 /dev/zero | tr '\\0' x; echo; python3 -c 'print(\"[\" + \"7,\" * 50000 + \"7]\")'; \
         head -c 300000 /dev/zero | tr '\\0' y >&2",
    );
    spec.output_bytes = 1000;
    let exit = run(spec);
    assert_eq!(exit.output.bytes().len(), 1000);
    assert_eq!(exit.result.bytes.len(), 100_003);
    assert!(exit.result.bytes.ends_with(b",7,7]"));
}

fn the_result_may_be_all_of_stdout_or_nothing() {
    for (from, expected) in [(ResultFrom::Stdout, &b"one\n\xfftwo\n"[..]), (ResultFrom::None, b"")]
    {
        let mut spec = shell(r"echo one; printf '\377two\n'; echo err >&2");
        spec.result_from = from;
        let exit = run(spec);
        assert_eq!((&exit.result.bytes[..], exit.result.dropped), (expected, 0));
    }
}

fn a_result_over_the_limit_is_counted() {
    for (from, size) in [(ResultFrom::LastJsonLine, 300_000), (ResultFrom::Stdout, 300_001)] {
        let mut spec = shell("head -c 300000 /dev/zero | tr '\\0' 7; echo");
        spec.result_from = from;
        let exit = run(spec);
        assert_eq!((exit.result.bytes.len(), exit.result.dropped), (0, size));
    }
}

fn secrets_are_masked_in_output_and_result() {
    let mut spec = argv(&[
        "sh",
        "-c",
        r#"echo "have $TOKEN"; printf S3KR; sleep 0.2; printf 'IT-42 split\n'; \
           echo "err $TOKEN" >&2; echo "{\"t\":\"$TOKEN\"}""#,
    ]);
    spec.env = vec![("TOKEN".into(), "S3KRIT-42".into())];
    spec.secrets = vec!["S3KRIT-42".into()];
    let seen = Arc::new(Mutex::new(Vec::new()));
    let follower = Arc::clone(&seen);
    let exit = block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        running.wait(move |_, bytes: &[u8]| follower.lock().unwrap().extend(bytes)).await
    });
    let shown = text(&exit);
    assert!(shown.contains("have ***\n") && shown.contains("*** split\n"), "{shown}");
    assert!(shown.contains("err ***\n"), "{shown}");
    assert_eq!(exit.result.bytes, br#"{"t":"***"}"#);
    let seen = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
    assert!(!seen.contains("S3KRIT") && seen.contains("*** split"), "{seen}");
}
