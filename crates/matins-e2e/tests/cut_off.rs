//! Nodes whose cables are pulled, each on a network of its own: what a node that is cut off runs is
//! gone before another may begin, and nodes that see different halves of the world do not get into
//! each other's way.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use matins_e2e::api::shell_task;
use matins_e2e::wait::{holds_for, seconds};
use matins_e2e::{Event, Server, Witness, eventually, json, process, together};
use matins_testbed::{Line, Namespace, Network, Postgres, Redis, skipped};

#[test]
fn cut_off() {
    // Only root may have networks of its own, and not in every container.
    if let Err(why) = Network::new() {
        return skipped(&format!("nodes that are cut off, without networks of our own: {why}"));
    }
    together(&[
        ("a node without any cable", without_any_cable),
        ("each sees a half of the world", halves_of_the_world),
    ]);
}

/// Where everything is: the database by one cable, Redis by another.
struct World {
    networks: [Network; 2],
    redis: Redis,
    config: String,
}

const DATABASE: usize = 0;
const REDIS: usize = 1;

impl World {
    fn new() -> Self {
        let networks = [(); 2].map(|()| Network::new().expect("a network"));
        let url = Postgres::shared().database("template1");
        let name = url.rsplit('/').next().expect("a name");
        // It may take tasks in for a database that is away.
        let redis = Redis::start(&["--appendonly", "yes"]);
        let [database, dispatch] = [Postgres::shared().port(), redis.port()];
        let place = |n: usize, port: u16| {
            let host = Network::host(&networks[n]);
            format!("{host}:{}", Line::at(host, port).port())
        };
        let config = format!(
            "store: postgres://postgres@{}/{name}\nredis: redis://{}\nallow_commands: any\n\
             lease: 4s\npoll: 200ms\n",
            place(DATABASE, database),
            place(REDIS, dispatch)
        );
        Self { networks, redis, config }
    }

    fn node(&self) -> Server {
        let own = Namespace::on(&[&self.networks[0], &self.networks[1]]).expect("a namespace");
        Server::builder().config(&self.config).namespace(own).start()
    }
}

fn pull(server: &Server, cable: usize) {
    server.namespace().expect("it has one").pull(cable);
}

fn plug_in(server: &Server, cable: usize) {
    server.namespace().expect("it has one").plug_in(cable);
}

fn without_any_cable() {
    let world = World::new();
    let cut = world.node();
    let witness = cut.witness.clone();
    let id = cut.api().shell(&witness.shell("sleep 7"), &json!({})).id().to_owned();
    let run = witness.wait_begin(&id, 1, seconds(10.0));
    let other = world.node();
    for cable in [DATABASE, REDIS] {
        pull(&cut, cable);
    }
    let pulled = Instant::now();
    eventually("the run is ended", seconds(10.0), || (!process::alive(run.pid)).then_some(()));
    // A tenth before its lease could be judged.
    let ended = pulled.elapsed();
    assert_eq!(witness.begins(&id).len(), 1, "nobody may begin before");
    witness.wait_begin(&id, 2, seconds(20.0));
    let begun = pulled.elapsed();
    assert_eq!(cut.api().outside("/healthz").status, 200, "a restart would mend nothing");
    eventually("it says that it takes nothing", seconds(8.0), || {
        (cut.api().outside("/readyz").status == 503).then_some(())
    });
    for cable in [DATABASE, REDIS] {
        plug_in(&cut, cable);
    }
    let task = other.api().wait_state(&id, "completed", seconds(30.0));
    let outcomes: Vec<_> = task.attempts().iter().map(|one| one["outcome"].clone()).collect();
    assert_eq!(outcomes, ["lost", "completed"], "{}", task.0);
    eventually("it is back", seconds(30.0), || cut.ready().then_some(()));
    holds_for("nothing changes any more", seconds(2.0), || other.api().task(&id).0 == task.0);
    assert_eq!((witness.begins(&id).len(), witness.ends(&id).len()), (2, 1));
    witness.assert_no_overlap();
    let next = cut.api().shell(&witness.quick_shell("true"), &json!({})).id().to_owned();
    cut.api().wait_state(&next, "completed", seconds(20.0));
    println!("ended {ended:?} after the cables were pulled, begun elsewhere after {begun:?}");
}

/// One sees the database alone, one Redis alone, one both, under load.
fn halves_of_the_world() {
    let world = World::new();
    let servers: Vec<Server> = (0..3).map(|_| world.node()).collect();
    let [both, no_redis, no_database] = &servers[..] else { panic!("three") };
    let witness = both.witness.clone();
    let accepted = load(&servers, &witness, |phase| match phase {
        1 => {
            pull(no_redis, REDIS);
            pull(no_database, DATABASE);
        }
        2 => {
            let mode = |server: &Server| {
                server.api().get("/status").expect(200).json()["mode"].as_str().map(str::to_owned)
            };
            let modes: Vec<_> = servers.iter().map(|server| mode(server).expect("it")).collect();
            assert_eq!(modes, ["normal", "degraded", "outage"]);
            plug_in(no_redis, REDIS);
            plug_in(no_database, DATABASE);
        }
        _ => (),
    });
    for id in &accepted {
        let task = both.api().wait_state(id, "completed", seconds(60.0));
        let completed = task.attempts().iter().filter(|one| one["outcome"] == "completed").count();
        assert_eq!(completed, 1, "{}", task.0);
    }
    let mut ends = HashMap::<String, u32>::new();
    for mark in witness.marks().into_iter().filter(|mark| mark.event == Event::End) {
        *ends.entry(mark.task).or_default() += 1;
    }
    for id in &accepted {
        // One that has ended and cannot tell the database may have to run again.
        let losses = both.api().task(id).number("losses");
        let ends = ends.get(id).copied().unwrap_or(0);
        assert!(ends == 1 || i64::from(ends) <= 1 + losses, "{id} ended {ends} times");
    }
    witness.assert_no_overlap();
    for server in &servers {
        eventually("it is back, and Redis knows everything", seconds(30.0), || {
            let drift = server.api().metric("matins_redis_drift", "");
            (server.ready() && drift == Some(0.0)).then_some(())
        });
        server.assert_no_panic();
    }
    println!("{} tasks, {} runs", accepted.len(), witness.begun());
    drop(world.redis);
}

/// Tasks for every node, through three phases of some seconds: what was accepted.
fn load(servers: &[Server], witness: &Witness, mut enter: impl FnMut(usize)) -> Vec<String> {
    let mut accepted = Vec::new();
    for phase in 0..3 {
        enter(phase);
        let end = Instant::now() + [4, 12, 4].map(Duration::from_secs)[phase];
        for n in 0.. {
            if Instant::now() > end {
                break;
            }
            let id = uuid::Uuid::new_v4().to_string();
            let work = if n % 4 == 0 { "sleep 2" } else { "sleep 0.1" };
            let body = shell_task(&witness.quick_shell(work), &json!({"id": id})).to_string();
            // Whoever cannot take it says so; the id makes the next try the same one.
            let takes = |server: &Server| {
                let api = server.api();
                let request = api.request("POST", "/tasks").json(body.clone());
                let answer = api.send(&request.timeout(seconds(8.0)));
                answer.is_ok_and(|answer| matches!(answer.status, 200 | 201))
            };
            let first = n % servers.len();
            let order = (0..servers.len()).map(|i| &servers[(first + i) % servers.len()]);
            // A node without the database makes its client wait: not each time.
            let mut order = order.filter(|server| n % 10 == 0 || server.ready());
            assert!(order.any(takes), "nobody takes it");
            accepted.push(id);
            thread::sleep(seconds(0.05));
        }
    }
    accepted
}
