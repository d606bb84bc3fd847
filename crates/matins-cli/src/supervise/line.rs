//! What parent and child say to each other: one JSON object a line. Both are the same program,
//! so there is no version; a line that is not understood is passed over, not fatal.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Log, LogFormat};

/// What the child is and needs, said once when it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Up {
    pub(crate) node_id: String,
    pub(crate) status: String,
    pub(crate) stall_after: Duration,
    /// Longest graceful stop.
    pub(crate) stop_within: Duration,
    /// Where the parent leaves alerts for the next child.
    pub(crate) spool: PathBuf,
    pub(crate) json_log: bool,
    pub(crate) log_level: String,
}

impl Up {
    /// How the log is to look.
    pub(super) fn log(&self) -> Log {
        let format = if self.json_log { LogFormat::Json } else { LogFormat::Text };
        Log { format, level: self.log_level.parse().unwrap_or(tracing::Level::INFO) }
    }
}

/// Child to parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Up(Up),
    Beat,
    Stalled { loops: String },
    Status { text: String },
}

/// Parent to child.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Drain and end; the second time: at once. How often it was said so far.
    Stop(u32),
}

/// The parent's end. Never blocks: a child that does not read must not hold its parent up.
pub(super) struct Line {
    stream: UnixStream,
    unread: Vec<u8>,
    closed: bool,
}

/// A line is never longer: whoever says more does not speak this language.
const LINE_MAX: usize = 64 << 10;

impl Line {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, unread: Vec::new(), closed: false })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn tell(&mut self, order: Order) -> io::Result<()> {
        self.stream.write_all(&encoded(&order)?)
    }

    /// Everything that was said since the last call.
    pub(super) fn read(&mut self) -> Vec<Said> {
        let mut bytes = [0; 4_096];
        while !self.closed {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        let whole = self.unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.unread.drain(..whole).collect();
        if self.unread.len() > LINE_MAX {
            self.unread.clear();
        }
        lines.split(|byte| *byte == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect()
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

pub(super) fn encoded(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_nonsense_is_passed_over() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut line = Line::new(ours).unwrap();
        let stalled = encoded(&Said::Stalled { loops: "a, b".to_owned() }).unwrap();
        theirs.write_all(b"\xff not json\n\"beat\"\n").unwrap();
        theirs.write_all(&stalled[..5]).unwrap();
        assert!(matches!(line.read()[..], [Said::Beat]));
        theirs.write_all(&stalled[5..]).unwrap();
        assert!(matches!(&line.read()[..], [Said::Stalled { loops }] if loops == "a, b"));
        theirs.write_all(&vec![b'x'; LINE_MAX + 1]).unwrap();
        assert!(line.read().is_empty() && line.unread.is_empty() && !line.is_closed());
        drop(theirs);
        assert!(line.read().is_empty() && line.is_closed());
    }
}
