//! What a command starts with: environment, input, descriptors, user, limits.

use std::fs;
use std::time::{Duration, Instant};

use matins_runtime::process::{CommandSpec, End, Program, RunId, Runner, SpawnError};
use rustix::process::geteuid;

use crate::witness::{Token, argv, block_on, children, finish, pids, run, runner, shell, text};

crate::cases![
    environment_is_an_allow_list,
    arguments_and_environments_of_others_hold_no_secret,
    input_is_written_and_closed,
    input_nobody_reads_blocks_nothing,
    a_command_has_three_descriptors,
    a_command_cannot_signal_its_runner_by_group,
    working_directory,
    user,
    nice,
    memory_max,
    cpu_max_says_when_it_does_not_hold,
    a_spec_the_system_cannot_express_is_refused,
    a_program_that_is_no_runner_is_refused,
    a_hundred_at_once,
    overhead_is_small,
];

fn environment_is_an_allow_list() {
    let mut spec = argv(&["env"]);
    spec.env = vec![("GIVEN".into(), "1".into()), ("LANG".into(), "xx".into())];
    let mark = format!("MATINS_RUN={}", spec.run);
    let exit = run(spec);
    let shown = text(&exit);
    let mut names: Vec<&str> = shown.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    let allowed = [
        "GIVEN",
        "HOME",
        "LANG",
        "LOGNAME",
        "MATINS_RUN",
        "PATH",
        "PWD",
        "SHELL",
        "SHLVL",
        "TMPDIR",
        "TZ",
        "USER",
        "_",
    ];
    for name in &names {
        assert!(allowed.contains(name) || name.starts_with("LC_"), "{name} is not for commands");
    }
    assert!(shown.contains("GIVEN=1\n") && shown.contains("LANG=xx\n"), "{shown}");
    assert!(shown.contains(&mark) && names.contains(&"PATH"), "{shown}");
}

fn arguments_and_environments_of_others_hold_no_secret() {
    let token = Token::new();
    let secret = format!("S3KRIT-{}", uuid::Uuid::now_v7());
    let mut spec = shell(&format!("sleep {}", token.0));
    spec.env = vec![("SECRET".into(), (&secret).into())];
    spec.stdin = secret.clone().into_bytes();
    block_on(async {
        let running = runner().spawn(spec).await.unwrap();
        let control = running.control();
        let task = tokio::spawn(running.wait(|_, _| ()));
        token.wait_for(1);
        for pid in pids() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&line).contains(&secret), "shown by ps: {pid}");
        }
        let runner = children(std::process::id() as i32)[0].0;
        let environment = fs::read(format!("/proc/{runner}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&environment).contains(&secret));
        control.cancel(Some(Duration::ZERO));
        task.await.unwrap();
    });
}

fn input_is_written_and_closed() {
    let started = Instant::now();
    let exit = run(shell("read x; echo got \"$x\""));
    assert_eq!(text(&exit), "got \n");
    let mut spec = shell("cat; echo end");
    spec.stdin = b"{\"a\":1}".to_vec();
    assert_eq!(text(&run(spec)), "{\"a\":1}end\n");
    let mut spec = argv(&["wc", "-c"]);
    spec.stdin = vec![b'x'; 1 << 20];
    assert_eq!(text(&run(spec)).trim(), "1048576");
    assert!(started.elapsed() < Duration::from_secs(3));
}

fn input_nobody_reads_blocks_nothing() {
    let started = Instant::now();
    for script in ["sleep 0.2; echo end", "exec <&-; sleep 0.2; echo end"] {
        let mut spec = shell(script);
        spec.stdin = vec![b'x'; 1 << 20];
        let exit = run(spec);
        assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(0), "end\n".into()));
    }
    assert!(started.elapsed() < Duration::from_secs(3));
}

fn a_command_has_three_descriptors() {
    let exit = run(shell("ls /proc/$$/fd"));
    assert_eq!(text(&exit), "0\n1\n2\n");
}

fn a_command_cannot_signal_its_runner_by_group() {
    let exit = run(shell("trap '' TERM; kill 0; echo alive"));
    assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(0), "alive\n".into()));
    assert_eq!(run(shell("kill -9 0")).end, End::Signaled(9));
}

fn working_directory() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = argv(&["pwd"]);
    spec.cwd = Some(folder.path().to_owned());
    assert_eq!(text(&run(spec)).trim(), folder.path().to_str().unwrap());
}

fn user() {
    let mut spec = shell("id -u; id -G; echo $HOME $USER");
    spec.user = Some("nobody".into());
    let exit = run(spec);
    if geteuid().is_root() {
        let shown = text(&exit);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[..2], ["65534", "65534"], "{shown}");
        assert!(lines[2].ends_with(" nobody") && !lines[2].starts_with("/root"), "{shown}");
    } else {
        assert!(
            matches!(&exit.end, End::SpawnFailed { message, .. } if message.contains("not permitted"))
        );
    }
    let mut spec = shell("true");
    spec.user = Some("no-such-user".into());
    let message = "user: user \"no-such-user\" does not exist".to_owned();
    assert_eq!(run(spec).end, End::SpawnFailed { message, permanent: true });
}

fn nice() {
    let mut spec = shell("nice");
    spec.nice = Some(7);
    let exit = run(spec);
    assert_eq!((text(&exit).trim(), exit.warnings.len()), ("7", 0));
}

fn memory_max() {
    let greedy = "x = bytearray(600 * 1024 * 1024)\nprint(len(x))";
    let mut spec = argv(&["python3", "-c", greedy]);
    assert_eq!(text(&run(spec.clone())).trim(), "629145600", "without a limit it works");
    spec.memory_max = Some(200 << 20);
    let exit = run(spec);
    assert_ne!(exit.end, End::Exited(0));
    if exit.end == End::OomSuspected {
        assert!(exit.warnings.is_empty(), "{:?}", exit.warnings);
    } else {
        assert!(text(&exit).contains("MemoryError"), "{:?} {}", exit.end, text(&exit));
        assert!(exit.warnings[0].starts_with("memory_max: "), "{:?}", exit.warnings);
    }
    let mut spec = shell("kill -9 $$");
    spec.memory_max = Some(1 << 30);
    assert_eq!(run(spec).end, End::OomSuspected, "killed from outside with a limit set");
}

fn cpu_max_says_when_it_does_not_hold() {
    // A tenth of a processor: half a second of work takes five.
    let busy = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.3: pass";
    let mut spec = argv(&["python3", "-c", busy]);
    spec.cpu_max = Some(0.1);
    let exit = run(spec);
    assert_eq!(exit.end, End::Exited(0));
    let slowed = exit.duration > Duration::from_secs(2);
    let warned = exit.warnings.iter().any(|warning| warning.starts_with("cpu_max: "));
    assert!(slowed || warned, "{:?} {:?}", exit.duration, exit.warnings);
}

fn a_spec_the_system_cannot_express_is_refused() {
    let refused = |spec: CommandSpec| match block_on(runner().spawn(spec)) {
        Err(SpawnError::Spec(error)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("was started"),
    };
    assert_eq!(refused(argv(&[])), "argv: expected a program and its arguments");
    assert_eq!(refused(argv(&["echo", "a\0b"])), "argv: must not contain a NUL character");
    assert_eq!(refused(shell("echo \0")), "shell: must not contain a NUL character");
    assert_eq!(refused(shell("")), "shell: expected a command text");
    let mut spec = shell("true");
    spec.env = vec![("A=B".into(), "1".into())];
    assert_eq!(refused(spec), "env: \"A=B\" is not a variable name");
    let mut spec = shell("true");
    spec.nice = Some(20);
    assert_eq!(refused(spec), "nice: expected a number from -20 to 19");
}

fn a_program_that_is_no_runner_is_refused() {
    block_on(async {
        runner().probe().await.unwrap();
        let error = Runner::new("/bin/true").probe().await.unwrap_err();
        assert_eq!(error.to_string(), "/bin/true is not a process runner of this version");
        let error = Runner::new("/no/such/file").probe().await.unwrap_err();
        assert!(error.to_string().starts_with("cannot start the process runner /no/such/file: "));
        let spec = CommandSpec::new(RunId::new("test"), Program::Shell("true".into()));
        assert!(Runner::new("/no/such/file").spawn(spec.clone()).await.is_err());
        let lost = Runner::new("/bin/true").spawn(spec).await.unwrap().wait(|_, _| ()).await;
        assert_eq!(lost.end, End::RunnerLost);
    });
}

fn a_hundred_at_once() {
    block_on(async {
        let tasks: Vec<_> = (0..100)
            .map(|n| {
                let mut spec = shell("sleep 0.3; cat; echo");
                spec.stdin = n.to_string().into_bytes();
                tokio::spawn(finish(spec))
            })
            .collect();
        for (n, task) in tasks.into_iter().enumerate() {
            let exit = task.await.unwrap();
            assert_eq!((exit.end.clone(), text(&exit)), (End::Exited(0), format!("{n}\n")));
        }
    });
    assert_eq!(children(std::process::id() as i32), [], "runners or zombies are left");
}

fn overhead_is_small() {
    const RUNS: u32 = 100;
    let started = Instant::now();
    block_on(async {
        for _ in 0..RUNS {
            assert_eq!(finish(argv(&["/bin/true"])).await.end, End::Exited(0));
        }
    });
    let each = started.elapsed() / RUNS;
    println!("one command: {each:?}");
    assert!(each < Duration::from_millis(50), "{each:?}");
}
