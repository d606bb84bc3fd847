//! Carries one message to its channel and says what became of it, within a limit of time whatever
//! the other side does. Must never put an address, a header or a secret into what it says.

use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use lettre::message::header::ContentType;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor};
use matins_core::alert::answer::{Verdict, judge};
use matins_core::alert::channel::{Kind, Mailbox, Security};
use matins_core::alert::render::Wire;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use crate::executors::http::OperatorCalls;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A message that has not got through in this time has not got through.
const LIMIT: Duration = Duration::from_secs(15);
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a command's complaint that are quoted.
const COMPLAINT_BYTES: u64 = 200;

/// What it needs for HTTP is made with the first call: most nodes have nothing to tell for long.
#[derive(Clone, Default)]
pub struct Courier(Arc<OnceLock<Result<OperatorCalls, String>>>);

impl Courier {
    pub async fn send(&self, kind: Kind, wire: Wire, now: Timestamp) -> Verdict {
        let limit = if kind == Kind::Command { COMMAND_LIMIT } else { LIMIT };
        let sent = tokio::time::timeout(limit, self.carry(kind, wire, now)).await;
        let late = || Verdict::Later { after: None, why: format!("no answer after {limit:?}") };
        sent.unwrap_or_else(|_| late())
    }

    async fn carry(&self, kind: Kind, wire: Wire, now: Timestamp) -> Verdict {
        match wire {
            Wire::Http { url, headers, body } => {
                let headers: Vec<(&str, &str)> =
                    headers.iter().map(|(name, value)| (&**name, value.reveal())).collect();
                let calls = self.0.get_or_init(|| OperatorCalls::new(CONNECT_LIMIT));
                let calls = match calls {
                    Ok(calls) => calls,
                    Err(why) => return Verdict::Later { after: None, why: why.clone() },
                };
                match calls.post(url.reveal(), &headers, body, now).await {
                    Ok(answer) => judge(kind, answer.status, answer.retry_after, &answer.body),
                    Err(why) => Verdict::Later { after: None, why },
                }
            }
            Wire::Mail { mailbox, subject, body } => mail(&mailbox, subject, body).await,
            Wire::Run { argv, env, stdin } => run(&argv, env, stdin).await,
        }
    }
}

/// Whether mail can be sent to, or from, a text: `a@b.c` or `Name <a@b.c>`.
pub fn is_mail_address(text: &str) -> bool {
    text.parse::<lettre::message::Mailbox>().is_ok()
}

async fn mail(mailbox: &Mailbox, subject: String, body: String) -> Verdict {
    let off = |error: String| Verdict::Off { why: error };
    let message = match message(mailbox, subject, body) {
        Ok(message) => message,
        Err(why) => return off(why),
    };
    let transport = match transport(mailbox) {
        Ok(transport) => transport,
        Err(error) => return off(error.to_string()),
    };
    let Err(error) = transport.send(message).await else { return Verdict::Sent };
    let code = error.status().map(u16::from);
    let why = match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    match code {
        // Wrong or missing credentials: the next mail would fare no better.
        Some(530 | 534 | 535 | 538) => Verdict::Off { why },
        Some(500..=599) => Verdict::Refused { why },
        _ => Verdict::Later { after: None, why },
    }
}

fn message(mailbox: &Mailbox, subject: String, body: String) -> Result<Message, String> {
    let address = |text: &str| {
        text.parse::<lettre::message::Mailbox>()
            .map_err(|error| format!("{text:?} is no mail address: {error}"))
    };
    let mut builder = Message::builder().from(address(&mailbox.from)?).subject(subject);
    for to in &mailbox.to {
        builder = builder.to(address(to)?);
    }
    let builder = builder.header(ContentType::TEXT_PLAIN);
    builder.body(body).map_err(|error| error.to_string())
}

fn transport(
    mailbox: &Mailbox,
) -> Result<AsyncSmtpTransport<Tokio1Executor>, lettre::transport::smtp::Error> {
    let tls = match mailbox.security {
        Security::Tls => Tls::Wrapper(TlsParameters::new(mailbox.host.clone())?),
        Security::Starttls => Tls::Required(TlsParameters::new(mailbox.host.clone())?),
        Security::None => Tls::None,
    };
    let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&mailbox.host)
        .port(mailbox.port)
        .tls(tls)
        .timeout(Some(CONNECT_LIMIT));
    if let (Some(user), Some(password)) = (&mailbox.user, &mailbox.password) {
        let password = password.reveal().to_owned();
        builder = builder.credentials(Credentials::new(user.clone(), password));
    }
    Ok(builder.build())
}

async fn run(argv: &[String], env: Vec<(&'static str, String)>, stdin: String) -> Verdict {
    let [program, arguments @ ..] = argv else {
        return Verdict::Off { why: "the command is empty".to_owned() };
    };
    // A group of its own, so that all of it ends when its time is over.
    let spawned = Command::new(program)
        .args(arguments)
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Verdict::Off { why: format!("{program:?} cannot run: {error}") },
    };
    let _group = Group(child.id());
    if let Some(mut pipe) = child.stdin.take() {
        // Whoever does not read what he is told need not.
        let _ = pipe.write_all(stdin.as_bytes()).await;
    }
    let mut complaint = Vec::new();
    if let Some(pipe) = child.stderr.take() {
        let mut first = pipe.take(COMPLAINT_BYTES);
        let _ = first.read_to_end(&mut complaint).await;
        let mut rest = first.into_inner();
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }
    let said = String::from_utf8_lossy(&complaint).trim().replace(char::is_control, " ");
    match child.wait().await {
        Ok(status) if status.success() => Verdict::Sent,
        Ok(status) => match status.code() {
            Some(126 | 127) => Verdict::Off { why: format!("{status}: {said}") },
            _ => Verdict::Later { after: None, why: format!("{status}: {said}") },
        },
        Err(error) => Verdict::Later { after: None, why: error.to_string() },
    }
}

/// Ends what is left of a command.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let pid =
            self.0.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}
