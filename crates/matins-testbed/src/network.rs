//! Networks with cables that a test pulls: each node in a namespace of its own, as if it were a
//! machine of its own. Only root may, and not in every container.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::server::Leash;

/// A switch that this machine is plugged into as well.
#[derive(Debug)]
pub struct Network {
    bridge: String,
    host: Ipv4Addr,
    nodes: AtomicU32,
    _leash: Leash,
}

/// A node's own network stack, with a cable to each of its networks.
#[derive(Debug, Clone)]
pub struct Namespace {
    name: String,
    /// The ends of its cables that are plugged into the switches.
    cables: Vec<String>,
    _leash: Arc<Leash>,
}

/// Names of interfaces hold 15 bytes.
fn own_name(kind: char) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("mt{:x}{kind}{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip (package iproute2): {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", said.trim())) }
}

impl Network {
    /// `Err` says why there can be none here.
    pub fn new() -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let bridge = own_name('b');
        // Of 198.18.0.0/15, which is there for tests: 4096 networks of 32 addresses.
        let which = (std::process::id() * 8 + MADE.fetch_add(1, Ordering::Relaxed)) % 4096;
        let host = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + which * 32 + 1);
        let leash = Leash::new(&format!("ip link del {bridge}"));
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {host}/27 dev {bridge}"))?;
        ip(&format!("link set {bridge} up"))?;
        Ok(Self { bridge, host, nodes: AtomicU32::new(0), _leash: leash })
    }

    /// Where its nodes find this machine.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }
}

impl Namespace {
    pub fn on(networks: &[&Network]) -> Result<Self, String> {
        let name = own_name('n');
        let cables: Vec<String> = networks.iter().map(|_| own_name('v')).collect();
        // A connection that nobody answers any more keeps a namespace for minutes, not its cables.
        let cut: Vec<String> = cables.iter().map(|cable| format!("ip link del {cable}")).collect();
        let leash = Leash::new(&format!("ip netns del {name}; {}", cut.join("; ")));
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        for (n, (network, cable)) in networks.iter().zip(&cables).enumerate() {
            let address = u32::from(network.host) + network.nodes.fetch_add(1, Ordering::Relaxed);
            let address = Ipv4Addr::from(address + 1);
            ip(&format!("link add {cable} type veth peer name eth{n} netns {name}"))?;
            ip(&format!("link set {cable} master {} up", network.bridge))?;
            ip(&format!("-n {name} addr add {address}/27 dev eth{n}"))?;
            ip(&format!("-n {name} link set eth{n} up"))?;
        }
        Ok(Self { name, cables, _leash: Arc::new(leash) })
    }

    /// What starts a command in it: the process is the command's own.
    pub fn wrapper(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.path())]
    }

    /// Pulls the cable to one of its networks: no connection is told, on either side.
    pub fn pull(&self, network: usize) {
        ip(&format!("link set {} down", self.cables[network])).expect("a cable");
    }

    pub fn plug_in(&self, network: usize) {
        ip(&format!("link set {} up", self.cables[network])).expect("a cable");
    }

    /// From now on this thread's new sockets are the namespace's.
    pub(crate) fn enter(path: &str) -> io::Result<()> {
        let file = File::open(path)?;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    pub(crate) fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::Line;

    /// What a process in the namespace serves is reached over a line; what it calls, by cable.
    #[test]
    fn a_node_calls_and_is_called_until_its_cable_is_pulled() {
        let network = match Network::new() {
            Ok(network) => network,
            Err(why) => return crate::skipped(&format!("networks of our own: {why}")),
        };
        let node = Namespace::on(&[&network]).expect("a namespace");
        let outside = TcpListener::bind((network.host(), 0)).unwrap();
        let outer = outside.local_addr().unwrap();
        let (path, (tell, told)) = (node.path(), std::sync::mpsc::channel());
        let inside = std::thread::spawn(move || {
            Namespace::enter(&path).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            tell.send(listener.local_addr().unwrap().port()).unwrap();
            let mut out = TcpStream::connect_timeout(&outer, Duration::from_secs(5)).unwrap();
            out.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut called = listener.accept().unwrap().0;
            let mut bytes = [0; 4];
            for _ in 0..2 {
                called.read_exact(&mut bytes).unwrap();
                out.write_all(&bytes).unwrap();
            }
        });
        let port = told.recv().unwrap();
        let line = Line::into(&node, port);
        let mut caller = TcpStream::connect(("127.0.0.1", line.port())).unwrap();
        let mut heard = outside.accept().unwrap().0;
        heard.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut bytes = [0; 4];
        caller.write_all(b"fine").unwrap();
        heard.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"fine");
        node.pull(0);
        caller.write_all(b"held").unwrap();
        assert!(heard.read_exact(&mut bytes).is_err(), "the cable is pulled");
        node.plug_in(0);
        heard.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        heard.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"held", "sent again when it is plugged in");
        inside.join().unwrap();
    }
}
