//! A connection that can go bad: a TCP relay to a server, which a test cuts and heals.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::network::Namespace;

/// What the line does with what is sent over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Passes it on.
    Fine = 0,
    /// Swallows it in silence, both ways: nobody is told, as when a cable is pulled.
    Silent = 1,
    /// Refuses new connections; those there were have been reset.
    Refused = 2,
    /// Passes it on, but later.
    Slow = 3,
}

#[derive(Debug)]
struct Shared {
    /// A port of this machine, for new connections.
    to: AtomicU16,
    weather: AtomicU8,
    /// Counts resets: connections of an earlier epoch are closed.
    epoch: AtomicU64,
}

/// One relay, until the process ends.
#[derive(Debug, Clone)]
pub struct Line {
    port: u16,
    shared: Arc<Shared>,
}

/// What is passed on slowly waits for so long.
const SLOW: Duration = Duration::from_millis(150);

/// How often a relay looks whether it has been cut.
const LOOK: Duration = Duration::from_millis(20);

impl Line {
    /// A relay to a port of this machine.
    pub fn to(port: u16) -> Self {
        Self::at(Ipv4Addr::LOCALHOST, port)
    }

    /// The same, at another of its addresses than loopback.
    pub fn at(host: Ipv4Addr, port: u16) -> Self {
        Self::between(TcpListener::bind((host, 0)), port, None)
    }

    /// From a port of this machine to the same port in a namespace.
    pub fn into(namespace: &Namespace, port: u16) -> Self {
        Self::between(TcpListener::bind((Ipv4Addr::LOCALHOST, port)), port, Some(namespace.path()))
    }

    /// From a port in a namespace to the same port of this machine.
    pub fn out_of(namespace: &Namespace, port: u16) -> Self {
        let path = namespace.path();
        let bind = move || {
            Namespace::enter(&path)?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        };
        Self::between(thread::spawn(bind).join().expect("it does not panic"), port, None)
    }

    fn between(near: io::Result<TcpListener>, port: u16, namespace: Option<String>) -> Self {
        let listener = near.expect("a free port");
        let own = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            to: AtomicU16::new(port),
            weather: AtomicU8::new(Weather::Fine as u8),
            epoch: AtomicU64::new(0),
        });
        let line = Self { port: own, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            if let Some(path) = namespace {
                // What listens stays here, what calls is there.
                Namespace::enter(&path).expect("the namespace is there");
            }
            for near in listener.incoming().flatten() {
                // What cannot be passed on is closed: the caller sees a refusal.
                let _ = relay(near, &shared);
            }
        });
        line
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to another port; those there are stay where they are.
    pub fn turn_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::SeqCst);
    }

    pub fn set(&self, weather: Weather) {
        if weather == Weather::Refused {
            self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        }
        self.shared.weather.store(weather as u8, Ordering::SeqCst);
    }
}

impl Shared {
    fn is(&self, weather: Weather) -> bool {
        self.weather.load(Ordering::SeqCst) == weather as u8
    }
}

fn relay(near: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    if shared.is(Weather::Refused) {
        return Ok(());
    }
    let epoch = shared.epoch.load(Ordering::SeqCst);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.to.load(Ordering::SeqCst)));
    let far = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        from.set_read_timeout(Some(LOOK))?;
        from.set_nodelay(true)?;
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            let _ = pass_on(&from, &to, &shared, epoch);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Until one side closes or the line is reset.
fn pass_on(
    mut from: &TcpStream,
    mut to: &TcpStream,
    shared: &Shared,
    epoch: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    while shared.epoch.load(Ordering::SeqCst) == epoch {
        if shared.is(Weather::Silent) {
            thread::sleep(LOOK);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                if shared.is(Weather::Slow) {
                    thread::sleep(SLOW);
                }
                while shared.is(Weather::Silent) {
                    thread::sleep(LOOK);
                }
                to.write_all(&bytes[..n])?;
            }
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_passes_on_swallows_and_refuses() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line::to(echo.local_addr().unwrap().port());
        thread::spawn(move || {
            for stream in echo.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        let mut caller = TcpStream::connect(("127.0.0.1", line.port())).unwrap();
        caller.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut answer = [0; 4];
        caller.write_all(b"fine").unwrap();
        caller.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"fine");
        line.set(Weather::Silent);
        caller.write_all(b"held").unwrap();
        assert!(caller.read_exact(&mut answer).is_err(), "nothing comes back");
        line.set(Weather::Fine);
        caller.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"held", "what was held arrives when the line is whole again");
        line.set(Weather::Slow);
        let begin = std::time::Instant::now();
        caller.write_all(b"slow").unwrap();
        caller.read_exact(&mut answer).unwrap();
        assert!(begin.elapsed() >= SLOW && &answer == b"slow");
        line.set(Weather::Refused);
        assert_eq!(caller.read(&mut answer).unwrap_or(0), 0, "it has been closed");
        let again = TcpStream::connect(("127.0.0.1", line.port()));
        assert!(again.map_or(0, |mut caller| caller.read(&mut answer).unwrap_or(0)) == 0);
    }
}
