//! How a command ended, told apart.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use matins_runtime::process::{End, Status};

use crate::witness::{argv, run, shell};

crate::cases![exit_codes, signals, spawn_errors, cwd_errors];

fn exit_codes() {
    for code in [0, 1, 78, 126, 137, 255] {
        let exit = run(shell(&format!("exit {code}")));
        assert_eq!((exit.end, exit.status), (End::Exited(code), Some(Status::Code(code))));
    }
    assert_eq!(run(shell("no-such-program")).end, End::Exited(127));
}

fn signals() {
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("ABRT", 6)] {
        let exit = run(shell(&format!("kill -{name} $$")));
        assert_eq!((exit.end, exit.status), (End::Signaled(number), Some(Status::Signal(number))));
    }
}

fn failure(words: &[&str]) -> String {
    match run(argv(words)).end {
        End::SpawnFailed { message, permanent: true } => message,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn spawn_errors() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let missing = failure(&["no-such-program", "x"]);
    assert_eq!(missing, "cannot run no-such-program: No such file or directory (os error 2)");
    let denied = failure(&[plain.to_str().unwrap()]);
    assert!(denied.ends_with("Permission denied (os error 13)"), "{denied}");
    let folder = failure(&[folder.path().to_str().unwrap()]);
    assert!(folder.ends_with("Permission denied (os error 13)"), "{folder}");
    let long = failure(&["true", &"x".repeat(3 << 20)]);
    assert!(long.contains("Argument list too long"), "{long}");
}

fn cwd_errors() {
    let mut spec = shell("true");
    spec.cwd = Some("/no/such/folder".into());
    let refused = |spec| match run(spec).end {
        End::SpawnFailed { message, permanent: true } => message,
        other => panic!("{other:?}"),
    };
    let expected = "cwd: /no/such/folder: No such file or directory (os error 2)";
    assert_eq!(refused(spec.clone()), expected);
    spec.cwd = Some("/etc/passwd".into());
    assert_eq!(refused(spec), "cwd: /etc/passwd is not a directory");
}
