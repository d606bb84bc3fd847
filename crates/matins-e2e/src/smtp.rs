//! A mail server that takes what it is given, or refuses with a code, and remembers each mail.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// What it answers to `RCPT` and to `DATA`: `250 ok` takes the mail.
pub struct Smtp {
    pub address: SocketAddr,
    mails: Arc<Mutex<Vec<String>>>,
}

impl Smtp {
    /// Serves until the test process ends. `rcpt` is its answer to each recipient.
    pub fn start(rcpt: &'static str) -> Smtp {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let mails = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&mails);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || {
                    // A caller that goes away is what some tests are about.
                    let _ = serve(stream, rcpt, &kept);
                });
            }
        });
        Smtp { address, mails }
    }

    pub fn mails(&self) -> Vec<String> {
        self.mails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(stream: TcpStream, rcpt: &str, mails: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut to = stream.try_clone()?;
    let mut from = BufReader::new(stream).lines();
    write!(to, "220 stub\r\n")?;
    while let Some(line) = from.next().transpose()? {
        let verb = line.split_whitespace().next().unwrap_or_default().to_ascii_uppercase();
        match verb.as_str() {
            "EHLO" | "HELO" => write!(to, "250-stub\r\n250 8BITMIME\r\n")?,
            "RCPT" => write!(to, "{rcpt}\r\n")?,
            "DATA" => {
                write!(to, "354 go on\r\n")?;
                let mut mail = String::new();
                while let Some(line) = from.next().transpose()? {
                    if line == "." {
                        break;
                    }
                    mail.push_str(&line);
                    mail.push('\n');
                }
                mails.lock().unwrap_or_else(PoisonError::into_inner).push(mail);
                write!(to, "250 taken\r\n")?;
            }
            "QUIT" => return write!(to, "221 bye\r\n"),
            _ => write!(to, "250 ok\r\n")?,
        }
    }
    Ok(())
}
