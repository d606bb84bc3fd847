//! The HTTP API of one server, as its users call it.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{Request, Response};
use crate::wait::eventually;

#[derive(Clone, Debug)]
pub struct Api {
    pub address: SocketAddr,
    pub token: String,
}

/// A task as the API shows it.
#[derive(Clone, Debug)]
pub struct Task(pub Value);

impl Task {
    pub fn id(&self) -> &str {
        self.0["id"].as_str().expect("a task has an id")
    }

    pub fn state(&self) -> &str {
        self.0["state"].as_str().expect("a task has a state")
    }

    pub fn number(&self, field: &str) -> i64 {
        match self.0[field].as_i64() {
            Some(number) => number,
            None => panic!("{field} is no number in {}", self.0),
        }
    }

    pub fn time(&self, field: &str) -> f64 {
        let text = self.0[field].as_str().unwrap_or_else(|| panic!("no {field} in {}", self.0));
        seconds_of(text)
    }

    pub fn deduplicated(&self) -> bool {
        self.0["deduplicated"] == true
    }

    pub fn attempts(&self) -> &[Value] {
        self.0["attempts"].as_array().map_or(&[], Vec::as_slice)
    }

    pub fn error_class(&self) -> &str {
        self.0["error"]["class"].as_str().unwrap_or("")
    }

    pub fn ended(&self) -> bool {
        matches!(self.state(), "completed" | "failed" | "cancelled")
    }
}

/// Seconds since 1970 of an RFC 3339 time.
pub fn seconds_of(text: &str) -> f64 {
    let time: jiff::Timestamp = text.parse().unwrap_or_else(|_| panic!("no RFC 3339: {text:?}"));
    crate::clock::unix(time)
}

impl Api {
    pub fn new(address: SocketAddr, token: &str) -> Api {
        Api { address, token: token.to_owned() }
    }

    /// A request with our token; `path` is below `/api/v1`.
    pub fn request(&self, method: &str, path: &str) -> Request {
        Request::new(method, &format!("/api/v1{path}"))
            .header("authorization", &format!("Bearer {}", self.token))
    }

    pub fn send(&self, request: &Request) -> io::Result<Response> {
        request.send(self.address)
    }

    #[track_caller]
    fn answer(&self, request: &Request) -> Response {
        match self.send(request) {
            Ok(response) => response,
            Err(error) => panic!("{} {}: {error}", request.method, request.target),
        }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.answer(&self.request("GET", path))
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_text(path, &body.to_string())
    }

    #[track_caller]
    pub fn post_text(&self, path: &str, body: &str) -> Response {
        self.answer(&self.request("POST", path).json(body))
    }

    #[track_caller]
    pub fn put(&self, path: &str, body: &Value) -> Response {
        self.answer(&self.request("PUT", path).json(body.to_string()))
    }

    #[track_caller]
    pub fn delete(&self, path: &str) -> Response {
        self.answer(&self.request("DELETE", path))
    }

    /// An answer outside `/api/v1`.
    #[track_caller]
    pub fn outside(&self, path: &str) -> Response {
        self.answer(
            &Request::new("GET", path).header("authorization", &format!("Bearer {}", self.token)),
        )
    }

    /// Enqueues a task that must be new.
    #[track_caller]
    pub fn enqueue(&self, task: &Value) -> Task {
        Task(self.post("/tasks", task).expect(201).json())
    }

    /// Enqueues an ad-hoc shell command with further fields of the task.
    #[track_caller]
    pub fn shell(&self, text: &str, fields: &Value) -> Task {
        self.enqueue(&shell_task(text, fields))
    }

    #[track_caller]
    pub fn task(&self, id: &str) -> Task {
        Task(self.get(&format!("/tasks/{id}")).expect(200).json())
    }

    /// Waits until the task has ended, however.
    #[track_caller]
    pub fn wait_end(&self, id: &str, within: Duration) -> Task {
        self.wait_task(id, "has ended", within, Task::ended)
    }

    #[track_caller]
    pub fn wait_state(&self, id: &str, state: &str, within: Duration) -> Task {
        self.wait_task(id, state, within, |task| task.state() == state)
    }

    #[track_caller]
    pub fn wait_task(
        &self,
        id: &str,
        what: &str,
        within: Duration,
        holds: impl Fn(&Task) -> bool,
    ) -> Task {
        let mut last = None;
        let found = crate::wait::wait_for(within, || {
            let answer = self.get(&format!("/tasks/{id}"));
            if answer.status == 503 {
                // What knows it is away at the moment.
                last = Some(answer.json());
                return None;
            }
            let task = Task(answer.expect(200).json());
            let holds = holds(&task);
            last = Some(task.0.clone());
            holds.then_some(task)
        });
        match found {
            Some(task) => task,
            None => panic!("not within {within:?}: {what}: {:#}", last.expect("it was asked")),
        }
    }

    /// Every task that the listing shows for a query such as `state=failed`.
    #[track_caller]
    pub fn list(&self, query: &str) -> Vec<Task> {
        self.pages("/tasks", query, "tasks").into_iter().map(Task).collect()
    }

    /// Every occurrence of a schedule.
    #[track_caller]
    pub fn occurrences(&self, schedule: &str) -> Vec<Value> {
        self.pages(&format!("/schedules/{schedule}/occurrences"), "", "occurrences")
    }

    #[track_caller]
    fn pages(&self, path: &str, query: &str, field: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("{path}?limit=100&{query}{cursor}")).expect(200).json();
            let Some(items) = page[field].as_array() else { panic!("no {field} in {page}") };
            all.extend(items.iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) if !next.is_empty() => cursor = format!("&cursor={}", escaped(next)),
                _ => return all,
            }
        }
    }

    /// The body of `/healthz` with its status.
    #[track_caller]
    pub fn health(&self) -> (u16, Value) {
        let response = self.outside("/healthz");
        (response.status, response.json())
    }

    /// One sample of `/metrics`: the sum over all lines of that name whose labels hold `having`.
    #[track_caller]
    pub fn metric(&self, name: &str, having: &str) -> Option<f64> {
        let text = self.outside("/metrics").expect(200).text();
        let values: Vec<f64> = text
            .lines()
            .filter(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && line.contains(having)
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    #[track_caller]
    pub fn eventually_state(&self, state: &str, count: usize, within: Duration) {
        eventually(&format!("{count} tasks are {state}"), within, || {
            let status = self.get("/status").expect(200).json();
            (status["tasks"][state].as_u64() == Some(count as u64)).then_some(())
        });
    }
}

/// A task of the built-in type `command`.
pub fn shell_task(text: &str, fields: &Value) -> Value {
    let mut task = json!({"type": "command", "payload": {"shell": text}});
    for (name, value) in fields.as_object().expect("fields are an object") {
        task[name] = value.clone();
    }
    task
}

/// Text as it stands in a query.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
