//! No room.

use std::process::Command;

use super::child::Process;

/// A limit on the size of files is what a quota or a small disk looks like, and can be lifted.
#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("matins.db");
    // 1 MiB in blocks of 512 bytes; the signal must not kill.
    let mut process = Process::start("fill", &path, "trap '' 25; ulimit -S -f 2048");
    let accepted: u64 = process.expect("full").parse().unwrap();
    assert!(accepted > 0);
    let pid = process.child.id().to_string();
    let lifted = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status();
    assert!(lifted.unwrap().success());
    let told = process.expect("accepted");
    let total: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!(total > accepted, "{told}");
    assert_eq!(process.expect("found"), "[]");
    assert!(process.child.wait().unwrap().success());

    let conn = rusqlite::Connection::open(&path).unwrap();
    let stored: i64 = conn.query_row("SELECT count(*) FROM task", [], |row| row.get(0)).unwrap();
    assert_eq!(stored, total.cast_signed(), "what was refused was not written");
}
