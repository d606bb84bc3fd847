//! An HTTP server that answers as it is told and remembers each request.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub target: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    pub at: Instant,
}

/// What the stub answers to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub after: Duration,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), after: Duration::ZERO }
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn after(mut self, after: Duration) -> Answer {
        self.after = after;
        self
    }
}

type Behaviour = dyn Fn(&Call) -> Answer + Send + Sync;

pub struct Stub {
    pub address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Stub {
    /// Serves until the test process ends.
    pub fn start(behaviour: impl Fn(&Call) -> Answer + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let seen = Arc::clone(&calls);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, behaviour) = (Arc::clone(&seen), Arc::clone(&behaviour));
                thread::spawn(move || {
                    // A caller that goes away is what some tests are about.
                    let _ = serve(stream, &seen, behaviour.as_ref());
                });
            }
        });
        Stub { address, calls }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn count(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Call>>, behaviour: &Behaviour) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut from = BufReader::new(stream.try_clone()?);
    let mut to = stream;
    while let Some(call) = read_call(&mut from)? {
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(call.clone());
        let answer = behaviour(&call);
        thread::sleep(answer.after);
        let mut bytes = Vec::new();
        write!(bytes, "HTTP/1.1 {} Stub\r\n", answer.status)?;
        write!(bytes, "content-length: {}\r\n", answer.body.len())?;
        for (name, value) in &answer.headers {
            write!(bytes, "{name}: {value}\r\n")?;
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&answer.body);
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn read_call(from: &mut BufReader<TcpStream>) -> io::Result<Option<Call>> {
    let mut first = String::new();
    if from.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some(Call { method, target, headers, body, at: Instant::now() }))
}
