//! The runner's pipes: orders from Matins, reports to it, and the command's three streams.
//!
//! None of them may stop the runner. What Matins does not take in time is dropped from the live
//! output and counted; what is kept for the record is kept here.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStderr, ChildStdin, ChildStdout};

use bytes::{Buf, Bytes};
use rustix::io::{Errno, ioctl_fionbio, read, write};

use super::super::capture::{Capture, Captured, ResultCapture};
use super::super::mask::Masker;
use super::super::spec::{CommandSpec, ResultBytes, ResultFrom};
use super::super::wire::{Decoder, ExitReport, Order, Report, WireError};

/// Live output waiting for Matins; more is dropped.
const BACKLOG_BYTES_MAX: usize = 1 << 20;
/// A last line of standard error that is longer explains nothing.
const COMPLAINT_BYTES_MAX: usize = 1 << 10;
const READ_BYTES: usize = 64 << 10;
/// A pipe that is still fed when the tree is empty belongs to a stranger: no more than this.
const DRAIN_READS_MAX: usize = 64;

/// Orders, on standard input.
pub(super) struct Control {
    decoder: Decoder,
    buffer: Vec<u8>,
}

pub(super) enum Received {
    Order(Order),
    Nothing,
    /// Matins is gone.
    Closed,
}

impl Control {
    pub(super) fn new() -> Self {
        Self { decoder: Decoder::default(), buffer: vec![0; READ_BYTES] }
    }

    /// Waits for what to run and its input; from then on nothing waits for orders.
    pub(super) fn receive_spec(&mut self) -> Result<Option<(CommandSpec, Bytes)>, WireError> {
        let spec = match self.next()? {
            Received::Order(Order::Spec(spec)) => spec,
            Received::Order(_) => return Err(WireError::Malformed("expected a spec")),
            Received::Nothing | Received::Closed => return Ok(None),
        };
        match self.next()? {
            Received::Order(Order::Stdin(stdin)) => {
                ioctl_fionbio(io::stdin(), true)
                    .map_err(|_| WireError::Malformed("standard input is no pipe"))?;
                Ok(Some((*spec, stdin)))
            }
            Received::Order(_) => Err(WireError::Malformed("expected the standard input")),
            Received::Nothing | Received::Closed => Ok(None),
        }
    }

    pub(super) fn next(&mut self) -> Result<Received, WireError> {
        loop {
            if let Some(order) = self.decoder.order()? {
                return Ok(Received::Order(order));
            }
            match read(io::stdin(), &mut self.buffer) {
                Ok(0) => return Ok(Received::Closed),
                Ok(length) => self.decoder.buffer.extend_from_slice(&self.buffer[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(_) => return Ok(Received::Closed),
            }
        }
    }
}

/// Reports, on standard output.
pub(super) struct Reporter {
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Live bytes dropped since the last that were queued.
    dropped: u64,
    closed: bool,
}

impl Reporter {
    pub(super) fn new() -> io::Result<Self> {
        ioctl_fionbio(io::stdout(), true)?;
        Ok(Self { queue: VecDeque::new(), queued: 0, dropped: 0, closed: false })
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.queue.is_empty()
    }

    fn live(&mut self, report: &Report, length: usize) {
        if self.closed {
            return;
        }
        if self.queued + length > BACKLOG_BYTES_MAX {
            self.dropped += length as u64;
            return;
        }
        if self.dropped > 0 {
            let gap = Report::Gap(std::mem::take(&mut self.dropped));
            self.push(&gap);
        }
        self.push(report);
        self.flush();
    }

    fn push(&mut self, report: &Report) {
        // Numbers and texts only: nothing in a report can fail to encode.
        if let Ok(frame) = report.encode() {
            self.queued += frame.len();
            self.queue.push_back(frame);
        }
    }

    /// Hands over as much as Matins takes right now.
    pub(super) fn flush(&mut self) {
        while let Some(frame) = self.queue.front_mut() {
            match write(io::stdout(), frame) {
                Ok(length) => {
                    frame.advance(length);
                    self.queued -= length;
                    if frame.is_empty() {
                        self.queue.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // Matins died; the closed control pipe says so too.
                    self.closed = true;
                    self.queue.clear();
                    self.queued = 0;
                }
            }
        }
    }

    pub(super) fn finish(&mut self, report: ExitReport) -> io::Result<()> {
        self.finish_with(Captured::default(), Vec::new(), report)
    }

    /// The last words. The tree is empty, so from here on waiting for Matins is all there is.
    pub(super) fn finish_with(
        &mut self,
        captured: Captured,
        result: Vec<u8>,
        report: ExitReport,
    ) -> io::Result<()> {
        if self.dropped > 0 {
            self.push(&Report::Gap(self.dropped));
        }
        self.push(&Report::Head(captured.head.into()));
        self.push(&Report::Tail(captured.tail.into()));
        self.push(&Report::Result(result.into()));
        self.push(&Report::Exit(report));
        ioctl_fionbio(io::stdout(), false)?;
        self.flush();
        Ok(())
    }
}

/// The command's standard input: written as it is taken, then closed.
pub(super) struct Feed {
    pipe: Option<ChildStdin>,
    bytes: Bytes,
}

impl Feed {
    pub(super) fn new(pipe: Option<ChildStdin>, bytes: Bytes) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        let mut feed = Self { pipe, bytes };
        feed.write();
        Ok(feed)
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn write(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        while !self.bytes.is_empty() {
            match write(pipe, &self.bytes) {
                Ok(length) => self.bytes.advance(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The command closed it: it does not want the rest.
                Err(_) => break,
            }
        }
        self.pipe = None;
    }
}

/// One of the command's two output streams.
struct Source<Pipe> {
    pipe: Option<Pipe>,
    masker: Masker,
}

impl<Pipe: Read + AsFd> Source<Pipe> {
    fn new(pipe: Option<Pipe>, spec: &CommandSpec) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            ioctl_fionbio(pipe, true)?;
        }
        Ok(Self { pipe, masker: Masker::new(&spec.secrets) })
    }

    /// What can be read now: nothing when the pipe is empty or closed.
    fn read(&mut self, buffer: &mut [u8]) -> Option<Vec<u8>> {
        let pipe = self.pipe.as_mut()?;
        loop {
            match pipe.read(buffer) {
                Ok(length) if length > 0 => {
                    let bytes = &buffer[..length];
                    let is_needed = self.masker.is_needed();
                    return Some(if is_needed { self.masker.push(bytes) } else { bytes.to_vec() });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                _ => {
                    self.pipe = None;
                    return None;
                }
            }
        }
    }
}

/// What the command wrote, in order of arrival.
pub(super) struct Output {
    out: Source<ChildStdout>,
    err: Source<ChildStderr>,
    kept: Capture,
    result: ResultCapture,
    complaint: ResultCapture,
    buffer: Vec<u8>,
}

impl Output {
    pub(super) fn new(
        spec: &CommandSpec,
        out: Option<ChildStdout>,
        err: Option<ChildStderr>,
    ) -> io::Result<Self> {
        Ok(Self {
            out: Source::new(out, spec)?,
            err: Source::new(err, spec)?,
            kept: Capture::new(spec.output_bytes),
            result: ResultCapture::new(spec.result_from, spec.result_bytes),
            complaint: ResultCapture::new(ResultFrom::LastJsonLine, COMPLAINT_BYTES_MAX),
            buffer: vec![0; READ_BYTES],
        })
    }

    pub(super) fn pipes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let out = self.out.pipe.as_ref().map(AsFd::as_fd);
        let err = self.err.pipe.as_ref().map(AsFd::as_fd);
        [out, err].into_iter().flatten()
    }

    /// One read of each stream; whether there was anything.
    pub(super) fn read_once(&mut self, reporter: &mut Reporter) -> bool {
        let out = self.out.read(&mut self.buffer);
        let err = self.err.read(&mut self.buffer);
        let any = out.is_some() || err.is_some();
        self.keep(out, err, reporter);
        any
    }

    fn keep(&mut self, out: Option<Vec<u8>>, err: Option<Vec<u8>>, reporter: &mut Reporter) {
        if let Some(bytes) = out.filter(|bytes| !bytes.is_empty()) {
            self.kept.push(&bytes);
            self.result.push(&bytes);
            let length = bytes.len();
            reporter.live(&Report::Out(bytes.into()), length);
        }
        if let Some(bytes) = err.filter(|bytes| !bytes.is_empty()) {
            self.kept.push(&bytes);
            self.complaint.push(&bytes);
            let length = bytes.len();
            reporter.live(&Report::Err(bytes.into()), length);
        }
    }

    /// Everything the dead tree left in the pipes.
    pub(super) fn drain(&mut self, reporter: &mut Reporter) {
        for _ in 0..DRAIN_READS_MAX {
            if !self.read_once(reporter) {
                break;
            }
        }
        let (out, err) = (self.out.masker.finish(), self.err.masker.finish());
        self.keep(Some(out), Some(err), reporter);
    }

    /// What was kept, the result, and the last line of standard error.
    pub(super) fn finish(&mut self) -> (Captured, ResultBytes, Option<String>) {
        let none = || ResultCapture::new(ResultFrom::None, 0);
        let kept = std::mem::replace(&mut self.kept, Capture::new(0)).finish();
        let result = std::mem::replace(&mut self.result, none()).finish();
        let complaint = std::mem::replace(&mut self.complaint, none()).finish().bytes;
        let complaint = String::from_utf8_lossy(&complaint).replace(char::is_control, " ");
        let complaint = complaint.trim().to_owned();
        (kept, result, Some(complaint).filter(|line| !line.is_empty()))
    }
}
