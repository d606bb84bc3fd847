//! The schema in PostgreSQL from outside: what was changed by hand is named and put right, and an
//! older program works on with a newer schema as long as that says so.

use std::sync::OnceLock;

use matins_e2e::wait::seconds;
use matins_e2e::{Server, json, together};
use matins_testbed::Postgres;

#[test]
fn schema() {
    together(&[
        ("drift is named with the command that repairs it", drift),
        ("an older program on a newer schema", ahead),
    ]);
}

/// One that is set up as `matins doctor` wants it.
fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start(&["fsync=on"]))
}

fn database() -> (String, String) {
    let url = postgres().database("template1");
    let name = url.rsplit('/').next().expect("a name").to_owned();
    (url, name)
}

fn drift() {
    let (url, name) = database();
    let server = Server::with(&format!("store: {url}\n"));
    let doctor = |code| server.cli(&["doctor"]).expect(code).out();
    assert!(doctor(0).contains("as this program made it"));
    let by_hand = "DROP INDEX matins.running_asked; \
                   ALTER FUNCTION matins.enqueue SECURITY INVOKER";
    postgres().sql(&name, by_hand);
    let said = doctor(1);
    for part in [
        "index running_asked is missing",
        "function matins.enqueue(",
        "is not as this program made it",
        "hint: matins migrate --repair",
    ] {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    let repaired = server.cli(&["migrate", "--repair"]).expect(0).out();
    assert!(repaired.contains("repaired: index running_asked is missing"), "{repaired}");
    assert!(doctor(0).contains("as this program made it"));
    let again = server.cli(&["migrate", "--repair"]).expect(0).out();
    assert!(again.contains("the schema is as it should be"), "{again}");
    // The functions that were made anew are still nobody's but the owner's.
    let open = "SELECT has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc AS p \
                WHERE p.pronamespace = 'matins'::regnamespace AND p.proname = 'enqueue'";
    assert_eq!(postgres().sql(&name, open), "f");
}

/// What a newer program's upgrade does while an older one works.
fn ahead() {
    let (url, name) = database();
    let psql = |sql: &str| postgres().sql(&name, sql);
    let every = "allow_commands: any\nschedules:\n  mark: {schedule: \"* * * * * *\", \
                 type: command, timezone: UTC, payload: {shell: \"true\"}}\n";
    let mut server = Server::with(&format!("store: {url}\n{every}"));
    let steps = "ALTER TABLE matins.worker ADD COLUMN mood text DEFAULT 'glad';
         ALTER TABLE matins.schedule ADD COLUMN mood text;
         ALTER TABLE matins.occurrence ADD COLUMN mood text;
         ALTER TABLE matins.dead_letter ADD COLUMN mood text;
         ALTER TABLE matins.audit ADD COLUMN mood text;
         CREATE TABLE matins.moods (name text PRIMARY KEY);
         CREATE INDEX tasks_by_author ON matins.task (created_by);
         INSERT INTO matins.setting VALUES ('mood', 'x', 'y');
         INSERT INTO matins.migration (version, name, checksum, compatible_from)
         SELECT max(version) + 1, 'moods', 'x', max(version) FROM matins.migration";
    // As a migration does it: whoever meets the node at work crosswise tries again.
    matins_e2e::eventually("the schema is ahead", seconds(60.0), || {
        postgres().try_sql(&name, steps).ok()
    });
    // The one that runs, and one that starts.
    for round in 0..2 {
        let api = server.api();
        let done = api.shell("true", &json!({}));
        api.wait_state(done.id(), "completed", seconds(30.0));
        let fails = api.shell("exit 7", &json!({"max_retries": 0}));
        api.wait_state(fails.id(), "failed", seconds(30.0));
        api.post(&format!("/tasks/{}/retry", fails.id()), &json!({})).expect(200);
        api.wait_state(fails.id(), "failed", seconds(30.0));
        let later = api.shell("true", &json!({"delay": 600}));
        api.post(&format!("/tasks/{}/cancel", later.id()), &json!({})).expect(200);
        matins_e2e::eventually("it fires", seconds(30.0), || {
            (api.occurrences("mark").len() > round * 2 + 1).then_some(())
        });
        server.restart();
    }
    assert!(server.cli(&["doctor"]).expect(0).out().contains("ok"));
    psql(
        "UPDATE matins.migration SET compatible_from = version
         WHERE version = (SELECT max(version) FROM matins.migration)",
    );
    let newest = psql("SELECT max(version) FROM matins.migration");
    let newest: u32 = newest.parse().expect("a number");
    let words = format!(
        "its schema has version {newest}, which programs that know less than {newest} cannot use, \
         and this one knows {}; use a newer matins",
        newest - 1
    );
    // The one that runs finds out by itself, and takes nothing in that it could not run.
    let body = json!({"type": "command", "payload": {"shell": "true"}});
    matins_e2e::eventually("it stops working", seconds(30.0), || {
        let answer = server.api().post("/tasks", &body);
        (answer.status == 503 && answer.text().contains(&words)).then_some(())
    });
    server.stop(seconds(30.0));
    let refused = server.try_start().expect_err("it cannot live with that");
    assert!(refused.contains(&words), "{refused}");
}
