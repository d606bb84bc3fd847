//! Accidents: a write torn by a power cut, a full disk, files that went missing.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use matins_e2e::alerts::{ok, told, webhook};
use matins_e2e::wait::seconds;
use matins_e2e::{Api, Server, eventually, json};

/// The write-ahead log is cut or damaged at its end, as by a power cut in mid-write: what was
/// committed before is there, the last commit is there whole or not at all.
#[test]
fn torn_writes() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage, usize); 5] = [
        ("cut by 100 bytes", |wal| cut(wal, 100), 1),
        ("cut in the last frame's header", |wal| cut(wal, 4096 + 10), 1),
        ("last frame garbled", |wal| garble(wal, 2000), 1),
        ("garbage appended", |wal| append(wal, &[0xA5; 9000]), 0),
        ("zeros appended", |wal| append(wal, &vec![0; 20_000]), 0),
    ];
    for (what, damage, may_lose) in damages {
        let mut server = Server::with("");
        let api = server.api();
        let ids: Vec<String> = (0..40)
            .map(|n| {
                api.enqueue(&json!({"type": "kept", "payload": n, "delay": "1h"})).id().to_owned()
            })
            .collect();
        server.kill();
        let wal = server.database().with_extension("db-wal");
        assert!(fs::metadata(&wal).is_ok_and(|file| file.len() > 20_000), "{what}: there is a log");
        damage(&wal);
        server.start();
        let lost: Vec<&String> =
            ids.iter().filter(|id| api.get(&format!("/tasks/{id}")).status == 404).collect();
        // Loops of the server may have committed after the last enqueue: then nothing is lost.
        assert!(lost.len() <= may_lose, "{what}: lost {lost:?}");
        assert!(lost.iter().all(|id| *id == ids.last().expect("one")), "{what}: lost {lost:?}");
        let id = api.shell("true", &json!({})).id().to_owned();
        api.wait_state(&id, "completed", seconds(5.0));
        server.assert_no_panic();
        server.kill();
        let store = rusqlite::Connection::open(server.database()).expect("opened");
        let check: String =
            store.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
        assert_eq!(check, "ok", "{what}");
    }
}

fn cut(file: &Path, bytes: u64) {
    let file = OpenOptions::new().write(true).open(file).expect("opened");
    let length = file.metadata().expect("its length").len();
    file.set_len(length - bytes).expect("cut");
}

fn garble(path: &Path, bytes: i64) {
    let mut file = OpenOptions::new().read(true).write(true).open(path).expect("opened");
    file.seek(SeekFrom::End(-bytes)).expect("sought");
    let mut old = Vec::new();
    file.read_to_end(&mut old).expect("read");
    let new: Vec<u8> = old.iter().map(|byte| byte ^ 0x5A).collect();
    file.seek(SeekFrom::End(-bytes)).expect("sought");
    file.write_all(&new).expect("written");
}

fn append(file: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(file).expect("opened");
    file.write_all(bytes).expect("written");
}

/// A file that is no store is told apart from an empty one, and is left as it was.
#[test]
fn a_file_that_is_no_store_is_refused() {
    let server = Server::builder().prepare();
    fs::create_dir_all(server.data_dir()).expect("made");
    let text = "these are the minutes of the last meeting\n".repeat(200);
    fs::write(server.database(), &text).expect("written");
    let output = server.cli(&["serve", "--no-supervise"]);
    assert!(matches!(output.code, 1 | 4), "{} {}", output.code, output.err());
    assert!(output.err().contains("matins.db"), "names the file: {}", output.err());
    assert!(!output.err().contains("panicked"), "{}", output.err());
    assert_eq!(fs::read_to_string(server.database()).expect("read"), text);

    let other = Server::builder().prepare();
    fs::create_dir_all(other.data_dir()).expect("made");
    let foreign = rusqlite::Connection::open(other.database()).expect("opened");
    foreign.execute_batch("CREATE TABLE task (a); INSERT INTO task VALUES (1);").expect("made");
    drop(foreign);
    let output = other.cli(&["serve", "--no-supervise"]);
    assert!(matches!(output.code, 1 | 4), "{} {}", output.code, output.err());
    let foreign = rusqlite::Connection::open(other.database()).expect("opened");
    let rows: i64 =
        foreign.query_row("SELECT count(*) FROM task", [], |row| row.get(0)).expect("kept");
    assert_eq!(rows, 1, "somebody else's database is left alone");
}

/// A small file system, mounted for the time of a test.
struct SmallDisk {
    mount: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    fn new(size: &str) -> SmallDisk {
        let folder = tempfile::tempdir().expect("a folder");
        let mount = folder.path().join("disk");
        fs::create_dir(&mount).expect("made");
        let options = format!("size={size},mode=1777");
        let path = mount.display().to_string();
        let mounted = as_root(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", &path]);
        assert!(mounted, "this test mounts a tmpfs: it needs root, or sudo without a password");
        SmallDisk { mount, _folder: folder }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        as_root(&["umount", "-l", &self.mount.display().to_string()]);
    }
}

fn as_root(words: &[&str]) -> bool {
    let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    if rustix::process::geteuid().is_root() {
        done(Command::new(words[0]).args(&words[1..]))
    } else {
        done(Command::new("sudo").arg("-n").args(words))
    }
}

/// The disk is full: enqueues are refused and say why, what was accepted stays, and with room
/// everything goes on, a task that ended meanwhile included.
#[test]
fn a_full_disk() {
    let disk = SmallDisk::new("6m");
    let stub = ok();
    let channel = format!("alerts: {{channels: {{ops: {}}}}}\n", webhook(&stub));
    let mut server = Server::builder().home(&disk.mount).config(&channel).prepare();
    server.start();
    let api = server.api();
    let mut kept: Vec<String> = (0..20)
        .map(|n| api.enqueue(&json!({"type": "kept", "payload": n, "delay": "1h"})).id().to_owned())
        .collect();
    let running = api.shell(&server.witness.shell("sleep 2; echo '\"late\"'"), &json!({}));
    let running = running.id().to_owned();
    server.witness.wait_begin(&running, 1, seconds(5.0));

    let ballast = disk.mount.join("ballast");
    fill(&ballast);
    let body = json!({"type": "kept", "payload": "x".repeat(20_000), "delay": "1h"});
    let mut refusals = 0;
    for _ in 0..300 {
        let answer = api.post("/tasks", &body);
        match answer.status {
            201 => kept.push(answer.json()["id"].as_str().expect("id").to_owned()),
            status => {
                assert!(matches!(status, 503 | 507), "{status} {}", answer.text());
                assert_eq!(answer.problem(), "store_full", "{}", answer.text());
                refusals += 1;
                if refusals == 10 {
                    break;
                }
            }
        }
        fill(&ballast);
    }
    assert_eq!(refusals, 10, "the disk never was full");
    all_there(&api, &kept);
    let output = server.cli(&["enqueue", "kept", "--json"]);
    assert!(matches!(output.code, 1 | 4), "{} {}", output.code, output.err());
    // The work ends now, and its record has no room.
    eventually("the work ends", seconds(5.0), || {
        (!server.witness.ends(&running).is_empty()).then_some(())
    });
    std::thread::sleep(seconds(1.0));
    assert!(server.running(), "a full disk ends no server");
    all_there(&api, &kept);
    // No file takes it down, and somebody is told.
    let store = |over| told(&stub).iter().any(|told| told.0 == "store" && told.3 == over);
    eventually("it is told", seconds(60.0), || {
        fill(&ballast);
        let answer = api.post("/tasks", &body);
        if answer.status == 201 {
            kept.push(answer.json()["id"].as_str().expect("id").to_owned());
        }
        store(false).then_some(())
    });

    fs::remove_file(&ballast).expect("removed");
    eventually("and its end", seconds(60.0), || store(true).then_some(()));
    let task = api.wait_end(&running, seconds(15.0));
    assert_eq!((task.state(), &task.0["result"]), ("completed", &json!("late")), "{:#}", task.0);
    assert_eq!(server.witness.begins(&running).len(), 1, "it was not run again");
    let after = api.shell(&server.witness.shell("true"), &json!({}));
    api.wait_state(after.id(), "completed", seconds(5.0));
    all_there(&api, &kept);

    // Killed on a full disk and started again there.
    fill(&ballast);
    server.kill();
    server.spawn();
    std::thread::sleep(seconds(2.0));
    fs::remove_file(&ballast).expect("removed");
    if server.running() {
        server.wait_ready();
    } else {
        server.kill();
        server.start();
    }
    all_there(&api, &kept);
    server.assert_no_panic();
}

fn all_there(api: &Api, ids: &[String]) {
    for id in ids {
        assert_eq!(api.task(id).state(), "pending");
    }
}

/// Takes all the room that is left.
fn fill(ballast: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(ballast).expect("opened");
    for size in [65_536, 4096, 512] {
        let block = vec![0xEE; size];
        while file.write_all(&block).is_ok() {}
    }
}

/// The folder is moved away under a running server and comes back.
#[test]
fn a_lost_data_folder_is_told() {
    let mut server = Server::with("");
    let api = server.api();
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", seconds(5.0));
    let gone = server.folder().join("gone");
    fs::rename(server.data_dir(), &gone).expect("moved away");
    std::thread::sleep(seconds(1.0));
    // Whatever it answers now, it answers, and says no success that is not durable.
    let answer = api.post("/tasks", &json!({"type": "kept", "payload": 1}));
    fs::rename(&gone, server.data_dir()).expect("moved back");
    server.restart();
    if answer.status == 201 {
        let id = answer.json()["id"].as_str().expect("id").to_owned();
        assert_eq!(server.api().task(&id).state(), "pending");
    }
    server.assert_no_panic();
}
