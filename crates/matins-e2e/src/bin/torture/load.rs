//! The clients: what they enqueue, and what they were told was accepted. A request without an
//! answer is sent again with the same id or key until there is one, so that each is accepted once.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use matins_e2e::api::shell_task;
use matins_e2e::stub::Answer;
use matins_e2e::{Api, Server, Stub, Task, Value, Witness, json};
use matins_testbed::Line;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::{Cluster, NAMED};

/// The longest that the stub thinks about an answer.
pub(crate) const STUB_DELAY: Duration = Duration::from_millis(60);
const CLIENTS: u64 = 4;
const KEYS: u32 = 300;
/// Clients hold back while more than this waits: the end should not take longer than the chaos.
const BACKLOG: u64 = 150;

/// What an accepted task has to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Command,
    /// Ends later than many a server lives.
    Slow,
    /// Fails at its first attempt.
    Flaky,
    /// Fails always.
    Failing,
    Keyed,
    Http,
    /// Its first call is answered with 500.
    FlakyHttp,
    FromCommandLine,
}

pub(crate) struct Load {
    /// Of each server; a request goes to whichever.
    apis: Vec<Api>,
    command_line: Vec<String>,
    witness: Witness,
    seed: u64,
    /// Tasks are of types that the servers' files define, as far as these have them.
    named: bool,
    pub(crate) stub: Stub,
    pub(crate) enough: AtomicBool,
    pub(crate) unanswered: AtomicUsize,
    /// Taken in while the database was away.
    pub(crate) journalled: AtomicUsize,
    accepted: Mutex<HashMap<String, Kind>>,
}

impl Load {
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Load {
        let seen = Mutex::new(HashMap::<String, u32>::new());
        let stub = Stub::start(move |call| {
            let id = call.headers.get("idempotency-key").cloned().unwrap_or_default();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let calls = seen.entry(id).or_default();
            *calls += 1;
            let status = if call.target == "/flaky" && *calls == 1 { 500 } else { 200 };
            let after = STUB_DELAY * (call.body.len() as u32 % 4) / 4;
            Answer::new(status, "{\"ok\":true}").after(after)
        });
        // Tasks of a server with a network of its own call it there.
        let servers = cluster.servers.iter().filter_map(Server::namespace);
        servers.for_each(|own| drop(Line::out_of(own, stub.address.port())));
        Load {
            apis: cluster.apis(),
            command_line: cluster.command_line(),
            witness: cluster.servers[0].witness.clone(),
            seed,
            named: cluster.mirror,
            stub,
            enough: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            journalled: AtomicUsize::new(0),
            accepted: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn accepted(&self) -> HashMap<String, Kind> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn note(&self, id: &str, kind: Kind) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.insert(id.to_owned(), kind);
    }

    pub(crate) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>) -> Vec<ScopedJoinHandle<'s, ()>> {
        let mut clients: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || self.client(self.seed ^ (client + 1))))
            .collect();
        clients.push(scope.spawn(|| self.terminal()));
        clients
    }

    fn client(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut turns = 0_u32;
        while !self.enough.load(Ordering::Relaxed) {
            match random.random_range(0..100) {
                0..8 => self.batch(&mut random),
                8..18 => self.keyed(&mut random),
                _ => {
                    let (kind, body) = self.task(&mut random);
                    let answer = self.until_accepted("/tasks", &body);
                    self.count_journalled(&answer);
                    self.note(body["id"].as_str().expect("made here"), kind);
                }
            }
            thread::sleep(Duration::from_millis(random.random_range(5..60)));
            turns += 1;
            if turns.is_multiple_of(8) {
                self.hold_back();
            }
        }
    }

    fn task(&self, random: &mut StdRng) -> (Kind, Value) {
        let id = json!(uuid::Uuid::from_u128(random.random()).to_string());
        let shell = |work: &str, fields: Value| self.shell(work, &fields);
        let call = |path: &str| {
            let body = "x".repeat(usize::from(id.as_str().expect("text").as_bytes()[0] % 16));
            let payload = json!({"url": self.stub.url(path), "method": "POST", "body": body});
            json!({"type": "http_call", "payload": payload})
        };
        let (kind, mut body) = match random.random_range(0..100) {
            0..3 => (Kind::Slow, shell("sleep 1.3", json!({}))),
            3..14 => (Kind::Flaky, shell("[ $MATINS_ATTEMPT != 1 ] || exit 1", json!({}))),
            14..18 => (Kind::Failing, shell("exit 1", json!({"max_retries": 1}))),
            18..36 => (Kind::Http, call("/steady")),
            36..42 => (Kind::FlakyHttp, call("/flaky")),
            _ => (Kind::Command, shell("sleep 0.02", json!({}))),
        };
        body["id"] = id;
        if random.random_range(0..10) == 0 {
            body["delay"] = json!(f64::from(random.random_range(0..2000)) / 1e3);
        }
        body["priority"] = json!(random.random_range(-3..=3));
        (kind, body)
    }

    /// By a type of its own where there is one for that work.
    fn shell(&self, work: &str, fields: &Value) -> Value {
        let named = NAMED.iter().find(|(_, same)| self.named && *same == work);
        let Some((name, _)) = named else {
            return shell_task(&self.witness.quick_shell(work), fields);
        };
        let mut body = fields.clone();
        body["type"] = json!(format!("own_{name}"));
        body
    }

    fn batch(&self, random: &mut StdRng) {
        let tasks: Vec<(Kind, Value)> =
            (0..random.random_range(2..12)).map(|_| self.task(random)).collect();
        let body: Vec<&Value> = tasks.iter().map(|(_, body)| body).collect();
        let answer = self.until_accepted("/tasks/batch", &json!(body));
        for ((kind, body), item) in tasks.iter().zip(answer["items"].as_array().expect("items")) {
            let status = item["status"].as_u64();
            assert!(matches!(status, Some(200 | 201)), "{item}");
            self.count_journalled(&item["task"]);
            self.note(body["id"].as_str().expect("made here"), *kind);
        }
    }

    /// A key that many clients use: the answer names the one task that does its work.
    fn keyed(&self, random: &mut StdRng) {
        let key = format!("key-{}", random.random_range(0..KEYS));
        let work = self.witness.quick_shell("sleep 0.05; echo '\"done\"'");
        let body = shell_task(&work, &json!({"execution_key": key}));
        let answer = Task(self.until_accepted("/tasks", &body));
        self.count_journalled(&answer.0);
        self.note(answer.id(), Kind::Keyed);
    }

    fn count_journalled(&self, task: &Value) {
        let journalled = task["durability"] == "redis";
        self.journalled.fetch_add(usize::from(journalled), Ordering::Relaxed);
    }

    fn until_accepted(&self, path: &str, body: &Value) -> Value {
        loop {
            let api = self.any();
            let request =
                api.request("POST", path).json(body.to_string()).timeout(Duration::from_secs(3));
            match api.send(&request) {
                Ok(answer) if matches!(answer.status, 200 | 201) => return answer.json(),
                Ok(answer) => assert!(answer.status == 503, "{} {}", answer.status, answer.text()),
                Err(_) => drop(self.unanswered.fetch_add(1, Ordering::Relaxed)),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn any(&self) -> &Api {
        &self.apis[rand::random_range(0..self.apis.len())]
    }

    fn hold_back(&self) {
        while !self.enough.load(Ordering::Relaxed) {
            let api = self.any();
            let request = api.request("GET", "/status").timeout(Duration::from_secs(3));
            let pending = api
                .send(&request)
                .ok()
                .filter(|answer| answer.status == 200)
                .and_then(|answer| answer.json()["tasks"]["pending"].as_u64());
            if pending.is_some_and(|pending| pending < BACKLOG) {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Somebody at a terminal works on the store itself, with or without a server.
    fn terminal(&self) {
        let work = json!({"shell": self.witness.quick_shell("true")}).to_string();
        while !self.enough.load(Ordering::Relaxed) {
            let id = uuid::Uuid::new_v4().to_string();
            loop {
                let mut command = Command::new(&self.command_line[0]);
                command.args(&self.command_line[1..]);
                command.args(["enqueue", "command", "--payload", &work, "--id", &id, "--json"]);
                let output = command.output().expect("the command line can be started");
                if output.status.success() {
                    break;
                }
                let told = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(4), "{told}");
                thread::sleep(Duration::from_millis(50));
            }
            self.note(&id, Kind::FromCommandLine);
            thread::sleep(Duration::from_millis(400));
        }
    }

    /// Every second, every second one at a time, by interval, and each mark with a key.
    pub(crate) fn create_schedules(&self) {
        let (quick, long) = ("true", "sleep 1.5");
        let schedule = |name: &str, expression: &str, work: &str, more: Value| {
            let mut body = self.shell(work, &more);
            body["schedule"] = json!(expression);
            self.apis[0].put(&format!("/schedules/{name}"), &body).expect(201);
        };
        schedule("every-second", "* * * * * *", quick, json!({"overlap": "allow"}));
        schedule("one-at-a-time", "* * * * * *", long, json!({"overlap": "skip"}));
        schedule("interval", "@every 2s", quick, json!({"overlap": "buffer_one"}));
        let key =
            json!({"overlap": "allow", "execution_key": "at-{{ occurrence.time | format('%s') }}"});
        schedule("keyed", "*/2 * * * * *", quick, key);
    }
}

pub(crate) const SCHEDULES: [&str; 4] = ["every-second", "one-at-a-time", "interval", "keyed"];
