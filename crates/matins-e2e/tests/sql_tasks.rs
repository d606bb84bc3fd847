//! Tasks that are SQL statements, and tasks that come from SQL: files, types, pools, secrets, and
//! what a database that is killed means.

use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Server, eventually, json, together};
use matins_testbed::Postgres;

#[test]
fn sql_tasks() {
    together(&[
        ("a type of the file and db_query", both_databases),
        ("who may name a statement", allowed),
        ("cancel and timeout reach the database", ended_on_the_server),
        ("a full pool of statements holds up nobody", isolation),
        ("tasks from psql land where the file says", routes),
    ]);
}

fn database() -> (String, String) {
    let url = Postgres::shared().database("template1");
    let name = url.rsplit('/').next().expect("a name").to_owned();
    (url, name)
}

fn both_databases() {
    let (url, name) = database();
    Postgres::shared().sql(&name, "CREATE TABLE orders (day date PRIMARY KEY, total numeric)");
    let mut server = Server::builder().variable("SHOP_URL", &url).prepare();
    rusqlite::Connection::open(server.home.join("shop.db"))
        .and_then(|conn| conn.execute_batch("CREATE TABLE seen (id INTEGER)"))
        .expect("a file");
    server.configure(
        "connections: {shop: 'env:SHOP_URL', local: 'sqlite:shop.db'}\ntasks:\n  \
         book: {executor: sql, connection: shop, params: [/day, /total], \
         sql: 'INSERT INTO orders VALUES ($1, $2) RETURNING *'}\n",
    );
    server.start();
    let api = server.api();
    let book = json!({"type": "book", "payload": {"day": "2026-11-29", "total": "1.50"}});
    let done = api.wait_state(api.enqueue(&book).id(), "completed", seconds(30.0));
    let rows = json!({"rows": [{"day": "2026-11-29", "total": 1.5}], "row_count": 1});
    assert_eq!(done.0["result"], rows);
    let again = api.wait_state(api.enqueue(&book).id(), "failed", seconds(30.0));
    assert_eq!((again.error_class(), again.number("retries")), ("sql", 0), "{}", again.0);
    let query = |connection: &str, sql: &str, params| {
        let payload = json!({"connection": connection, "sql": sql, "params": params});
        let task = api.enqueue(&json!({"type": "db_query", "payload": payload}));
        api.wait_state(task.id(), "completed", seconds(30.0)).0["result"].clone()
    };
    let put = query("local", "INSERT INTO seen VALUES (?1)", json!([7]));
    assert_eq!(put, json!({"rows": [], "row_count": 1}));
    let seen = query("local", "SELECT id FROM seen", json!([]));
    assert_eq!(seen, json!({"rows": [{"id": 7}], "row_count": 1}));
    let total = query("shop", "SELECT sum(total) AS t FROM orders", json!([]));
    assert_eq!(total["rows"][0]["t"], json!(1.5));
    assert!(!server.log_text().contains(&url), "the address is a secret");
}

fn allowed() {
    let (url, _) = database();
    let connections = "connections: {shop: 'sqlite:shop.db'}\n";
    let task = json!({"type": "db_query", "max_retries": 0,
                      "payload": {"connection": "shop", "sql": "SELECT 1"}});
    let server = Server::with(&format!("store: {url}\n{connections}"));
    let id = server.api().enqueue(&task).id().to_owned();
    holds_for("not run where nothing is said on PostgreSQL", seconds(2.0), || {
        server.api().task(&id).state() == "pending"
    });
    server.configure(&format!("store: {url}\nallow_commands: [db_query]\n{connections}"));
    server.signal(matins_e2e::process::Signal::HUP);
    // There is no such file: that it was tried is enough.
    let ended = server.api().wait_state(&id, "failed", seconds(30.0));
    assert_eq!(ended.error_class(), "sql", "{}", ended.0);
    let wrong = json!({"type": "db_query", "payload": {"connection": "shop", "query": "SELECT 1"}});
    let refused = server.api().post("/tasks", &wrong).expect(422);
    assert!(refused.text().contains("query"), "{}", refused.text());
    let check = "connections: {shop: 'mysql://h/d'}\n";
    server.configure(check);
    let said = server.cli(&["check"]).expect(2).err();
    assert!(said.contains("connections.shop: expected postgres://"), "{said}");
    server.configure("tasks: {x: {executor: sql, connection: nowhere, sql: SELECT 1}}\n");
    let said = server.cli(&["check"]).expect(2).err();
    assert!(said.contains("tasks.x.connection: nowhere"), "{said}");
}

fn ended_on_the_server() {
    let (url, name) = database();
    let server = Server::with(&format!("connections: {{shop: '{url}'}}\n"));
    let api = server.api();
    let sleeps = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND state = 'active' AND query LIKE 'SELECT pg_sleep%'";
        Postgres::shared().sql(&name, sql)
    };
    let sleep = |fields: serde_json::Value| {
        let payload = json!({"connection": "shop", "sql": "SELECT pg_sleep(600)"});
        let mut task = json!({"type": "db_query", "payload": payload});
        task.as_object_mut().expect("fields").extend(fields.as_object().expect("fields").clone());
        let id = api.enqueue(&task).id().to_owned();
        eventually("it runs there", seconds(30.0), || (sleeps() == "1").then_some(()));
        id
    };
    let id = sleep(json!({}));
    api.post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
    api.wait_state(&id, "cancelled", seconds(30.0));
    assert_eq!(sleeps(), "0", "cancelled on the server");
    let id = sleep(json!({"timeout": 3, "max_retries": 0}));
    let task = api.wait_state(&id, "failed", seconds(60.0));
    assert_eq!((task.error_class(), sleeps().as_str()), ("timeout", "0"));
    // The server itself is killed: the statement ends with its session.
    let mut server = server;
    let id = sleep(json!({}));
    server.kill();
    eventually("nobody is left with it", seconds(30.0), || (sleeps() == "0").then_some(()));
    server.start();
    eventually("it runs again", seconds(30.0), || (sleeps() == "1").then_some(()));
    server.api().post(&format!("/tasks/{id}/cancel"), &json!({})).expect(202);
    server.api().wait_state(&id, "cancelled", seconds(30.0));
}

fn isolation() {
    let (url, _) = database();
    let server = Server::with(&format!(
        "connections: {{shop: '{url}'}}\ntask_pools:\n  \
         db_pool: {{max_workers: 4, task_types: [db_query]}}\n"
    ));
    let api = server.api();
    for _ in 0..8 {
        let payload = json!({"connection": "shop", "sql": "SELECT pg_sleep(60)"});
        api.enqueue(&json!({"type": "db_query", "payload": payload}));
    }
    eventually("the pool is full", seconds(30.0), || {
        (api.list("state=running").len() == 4).then_some(())
    });
    let id = api.shell("true", &json!({})).id().to_owned();
    api.wait_state(&id, "completed", seconds(10.0));
    assert_eq!(api.list("state=running").len(), 4);
}

fn routes() {
    let (url, name) = database();
    let config = |pool: &str, limit: usize| {
        format!(
            "store: {url}\nlimits: {{payload_bytes: {limit}KiB}}\ntask_pools:\n  \
             {pool}: {{max_workers: 2, task_types: [note]}}\ntasks:\n  \
             note: {{executor: command, shell: cat}}\n"
        )
    };
    let enqueue = |more: &str| {
        let sql = format!("BEGIN; SELECT matins.enqueue('note', {more}); COMMIT");
        Postgres::shared().try_sql(&name, &sql)
    };
    let server = Server::with(&config("io_pool", 4));
    let api = server.api();
    let id = enqueue("'{\"a\": 1}'").expect("accepted");
    let task = api.wait_state(&id, "completed", seconds(30.0));
    assert_eq!((&task.0["pool"], &task.0["result"]), (&json!("io_pool"), &json!({"a": 1})));
    let large = "to_json(repeat('x', 3000))";
    enqueue(large).expect("within the limit of the file");

    server.configure(&config("cpu_pool", 2));
    server.signal(matins_e2e::process::Signal::HUP);
    eventually("the new file holds in the database", seconds(30.0), || {
        let said = enqueue(large).err()?;
        said.contains("payload: is 3002 bytes long; the limit payload_bytes is 2048").then_some(())
    });
    let id = eventually("and its pools", seconds(30.0), || {
        let id = enqueue("'2'").ok()?;
        (api.task(&id).0["pool"] == json!("cpu_pool")).then_some(id)
    });
    api.wait_state(&id, "completed", seconds(30.0));
    // And one that names the type no more takes its route away.
    server
        .configure(&format!("store: {url}\ntasks: {{note: {{executor: command, shell: cat}}}}\n"));
    server.signal(matins_e2e::process::Signal::HUP);
    eventually("the route is gone", seconds(30.0), || {
        let id = enqueue("'3'").ok()?;
        (api.task(&id).0["pool"] == json!("default")).then_some(())
    });
}
