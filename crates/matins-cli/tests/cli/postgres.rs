//! What commands say of a PostgreSQL that is empty, away, or silent.

use std::time::{Duration, Instant};

use matins_testbed::{Line, Postgres, Weather};
use serde_json::json;

use crate::sandbox::Sandbox;

const ID: &str = "01890000-0000-7000-8000-000000000000";

fn database() -> (String, String) {
    let url = Postgres::shared().database("template1");
    let name = url.rsplit('/').next().unwrap().to_owned();
    (url, name)
}

#[test]
fn whoever_looks_makes_no_store() {
    let (url, name) = database();
    let sandbox = Sandbox::with_config(&format!("store: {url}\n"));
    let looking: [&[&str]; 9] = [
        &["status"],
        &["list"],
        &["list", "--json"],
        &["why", ID],
        &["dead", "list"],
        &["schedule", "list"],
        &["audit"],
        &["freeze", "--reason", "x"],
        &["top", "--once"],
    ];
    for args in looking {
        let told = sandbox.matins(args).fails_with(4).complains("no store at postgres://");
        told.complains(&name).complains("matins migrate makes a store");
    }
    sandbox.matins(&["doctor"]).says("does not exist yet");
    let schema = || Postgres::shared().sql(&name, "SELECT to_regnamespace('matins') IS NULL");
    assert_eq!(schema(), "t");
    sandbox.matins(&["migrate"]).succeeds().says("applied 1 ");
    sandbox.matins(&["status"]).succeeds().says("dead letters");
    assert_eq!(schema(), "f");
}

#[test]
fn a_database_that_is_away_is_told_with_what_to_do() {
    let (url, _) = database();
    let line = Line::to(Postgres::shared().port());
    let own = format!(":{}", Postgres::shared().port());
    let through = url.replace(&own, &format!(":{}", line.port()));
    let sandbox = Sandbox::with_config(&format!("store: {through}\n"));
    sandbox.matins(&["migrate"]).succeeds();
    line.set(Weather::Refused);
    let place = format!("127.0.0.1:{}", line.port());
    let asking: [&[&str]; 4] = [&["status"], &["why", ID], &["enqueue", "x"], &["dead", "list"]];
    for args in asking {
        let told = sandbox.matins(args).fails_with(4);
        told.complains(&place).complains("hint: does PostgreSQL run there").complains("restart");
    }
    let told = sandbox.matins(&["doctor"]).fails_with(1);
    told.says("bad      store").says(&place).says("hint: does PostgreSQL run there");
    // A server with Redis takes in what a command cannot write.
    let redis = format!("store: {through}\nredis: redis://127.0.0.1:1\n");
    sandbox.write("matins.yaml", &redis);
    sandbox.matins(&["enqueue", "x"]).fails_with(4).complains("add --server http://");
}

#[test]
fn a_database_that_takes_connections_and_never_answers_is_given_up() {
    let (url, _) = database();
    let line = Line::to(Postgres::shared().port());
    let own = format!(":{}", Postgres::shared().port());
    line.set(Weather::Silent);
    let sandbox = Sandbox::new();
    let store = url.replace(&own, &format!(":{}", line.port()));
    let began = Instant::now();
    let told = sandbox.matins(&["status", "--store", &store]).fails_with(4);
    told.complains("it has not answered for 10 s").complains("does PostgreSQL run there");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[test]
fn commands_that_are_closed_are_told_with_what_opens_them() {
    let (url, _) = database();
    let sandbox = Sandbox::with_config(&format!("store: {url}\n"));
    let payload = json!({"argv": ["true"]}).to_string();
    let id = sandbox.enqueue(&["command", "--payload", &payload]);
    let told = sandbox.matins(&["why", &id]).succeeds().says("no_worker_for_type");
    told.complains("allow_commands: [command]").complains("matins node list");
    sandbox.matins(&["doctor"]).says("allow_commands keeps command, http_call, db_query out");
    let told = sandbox.matins(&["run", "--", "true"]).fails_with(125);
    told.complains("forbids commands").complains("hint: allow_commands: [command]");
}
