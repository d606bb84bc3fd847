//! A small HTTP/1.1 client with nothing between the test and the socket: requests may be as wrong
//! as a test wants them, and a connection that breaks is an error and not a retry.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub timeout: Duration,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Request {
        Request {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: TIMEOUT,
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        self
    }

    /// A JSON body with its content type.
    pub fn json(self, body: impl Into<Vec<u8>>) -> Request {
        self.header("content-type", "application/json").body(body)
    }

    pub fn timeout(mut self, timeout: Duration) -> Request {
        self.timeout = timeout;
        self
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name))
    }

    /// The bytes on the wire. `Host`, `Content-Length` and `Connection` unless given.
    pub fn bytes(&self, to: SocketAddr) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let mut line = |name: &str, value: &str| {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push_str("\r\n");
        };
        if !self.has("host") {
            line("host", &to.to_string());
        }
        if !self.has("connection") {
            line("connection", "close");
        }
        let bodyless = self.body.is_empty() && matches!(self.method.as_str(), "GET" | "HEAD");
        if !bodyless && !self.has("content-length") && !self.has("transfer-encoding") {
            line("content-length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            line(name, value);
        }
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    pub fn send(&self, to: SocketAddr) -> io::Result<Response> {
        let mut stream = TcpStream::connect_timeout(&to, self.timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.timeout))?;
        stream.set_write_timeout(Some(self.timeout))?;
        let written = stream.write_all(&self.bytes(to));
        // A server may refuse a body before it has read it: the answer counts, not the pipe.
        match Response::read(&mut BufReader::new(stream)) {
            Ok(response) => Ok(response),
            Err(error) => Err(written.err().unwrap_or(error)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn read(from: &mut impl BufRead) -> io::Result<Response> {
        let status_line = line(from)?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| bad(format!("no status line but {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let text = line(from)?;
            if text.is_empty() {
                break;
            }
            let (name, value) =
                text.split_once(':').ok_or_else(|| bad(format!("no header: {text:?}")))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        response.read_body(from)?;
        Ok(response)
    }

    fn read_body(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        if self.status == 204 || self.status == 304 {
            return Ok(());
        }
        if self.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = line(from)?;
                let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16)
                    .map_err(|_| bad(format!("no chunk size: {size:?}")))?;
                let start = self.body.len();
                self.body.resize(start + size, 0);
                from.read_exact(&mut self.body[start..])?;
                line(from)?;
                if size == 0 {
                    return Ok(());
                }
            }
        }
        if let Some(length) = self.header("content-length") {
            let length = length.parse().map_err(|_| bad("no content length".into()))?;
            self.body = vec![0; length];
            return from.read_exact(&mut self.body);
        }
        from.read_to_end(&mut self.body).map(|_| ())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{error} in the answer {} {}", self.status, self.text()),
        }
    }

    /// Fails unless the status is the one expected.
    #[track_caller]
    pub fn expect(self, status: u16) -> Response {
        assert!(self.status == status, "expected {status}, got {} {}", self.status, self.text());
        self
    }

    /// The `code` of a problem document; fails when it is none.
    #[track_caller]
    pub fn problem(&self) -> String {
        let kind = self.header("content-type").unwrap_or("");
        assert!(
            kind.starts_with("application/problem+json"),
            "an error must be a problem document: {} {kind:?} {}",
            self.status,
            self.text()
        );
        let document = self.json();
        assert_eq!(document["status"], self.status, "status of {document}");
        match document["code"].as_str() {
            Some(code) => code.to_owned(),
            None => panic!("a problem has a code: {document}"),
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut bytes = Vec::new();
    if from.take(1 << 20).read_until(b'\n', &mut bytes)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed, no answer"));
    }
    while matches!(bytes.last(), Some(b'\n' | b'\r')) {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| bad("a header is not text".into()))
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
