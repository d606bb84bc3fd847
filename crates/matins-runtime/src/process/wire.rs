//! The two pipes' format: frames of a kind byte, a length (u32, little endian) and a body.
//!
//! Only this module knows it. Both ends are the same program; [`PROTOCOL`] guards against a
//! runner of another version found on `PATH`.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::clock::Moment;
use super::spec::{CommandSpec, End, Status};

pub(super) const PROTOCOL: u32 = 1;
const HEADER: usize = 5;
/// More than any body either side makes; a longer one is a foreign or broken peer.
const BODY_MAX: usize = 256 << 20;

const SPEC: u8 = b'S';
const STDIN: u8 = b'I';
const EXTEND: u8 = b'X';
const CANCEL: u8 = b'C';

const OUT: u8 = b'1';
const ERR: u8 = b'2';
const GAP: u8 = b'G';
const HEAD: u8 = b'H';
const TAIL: u8 = b'T';
const RESULT: u8 = b'R';
const EXIT: u8 = b'E';

#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("runner protocol: {0}")]
    Malformed(&'static str),
    #[error("runner protocol: {0}")]
    Json(#[from] serde_json::Error),
}

/// From Matins to the runner.
pub(super) enum Order {
    Spec(Box<CommandSpec>),
    Stdin(Bytes),
    Extend(Moment),
    /// With a grace of its own, or that of the spec.
    Cancel(Option<Duration>),
}

/// From the runner to Matins.
pub(super) enum Report {
    Out(Bytes),
    Err(Bytes),
    /// So many bytes of live output were not forwarded because nobody took them.
    Gap(u64),
    Head(Bytes),
    Tail(Bytes),
    Result(Bytes),
    Exit(ExitReport),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ExitReport {
    pub(super) end: End,
    pub(super) status: Option<Status>,
    pub(super) duration: Duration,
    pub(super) output_total: u64,
    pub(super) result_dropped: u64,
    pub(super) complaint: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) survivors: usize,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    protocol: u32,
    spec: T,
}

impl Order {
    pub(super) fn encode(&self) -> Result<Bytes, WireError> {
        Ok(match self {
            Self::Spec(spec) => {
                let body = serde_json::to_vec(&Versioned { protocol: PROTOCOL, spec })?;
                frame(SPEC, &body)
            }
            Self::Stdin(bytes) => frame(STDIN, bytes),
            Self::Extend(deadline) => frame(EXTEND, &deadline.as_nanos().to_le_bytes()),
            Self::Cancel(grace) => {
                let millis = grace.map_or(u64::MAX, |grace| grace.as_millis() as u64);
                frame(CANCEL, &millis.to_le_bytes())
            }
        })
    }

    fn decode(kind: u8, body: Bytes) -> Result<Self, WireError> {
        Ok(match kind {
            SPEC => {
                // The version is judged before the rest, which another version may not parse.
                #[derive(Deserialize)]
                struct Version {
                    protocol: u32,
                }
                if serde_json::from_slice::<Version>(&body)?.protocol != PROTOCOL {
                    return Err(WireError::Malformed("the runner is of another version"));
                }
                let versioned: Versioned<CommandSpec> = serde_json::from_slice(&body)?;
                Self::Spec(Box::new(versioned.spec))
            }
            STDIN => Self::Stdin(body),
            EXTEND => Self::Extend(Moment::from_nanos(number(&body)?)),
            CANCEL => Self::Cancel(match number(&body)? {
                u64::MAX => None,
                millis => Some(Duration::from_millis(millis)),
            }),
            _ => return Err(WireError::Malformed("unknown order")),
        })
    }
}

impl Report {
    pub(super) fn encode(&self) -> Result<Bytes, WireError> {
        Ok(match self {
            Self::Out(bytes) => frame(OUT, bytes),
            Self::Err(bytes) => frame(ERR, bytes),
            Self::Gap(bytes) => frame(GAP, &bytes.to_le_bytes()),
            Self::Head(bytes) => frame(HEAD, bytes),
            Self::Tail(bytes) => frame(TAIL, bytes),
            Self::Result(bytes) => frame(RESULT, bytes),
            Self::Exit(report) => frame(EXIT, &serde_json::to_vec(report)?),
        })
    }

    fn decode(kind: u8, body: Bytes) -> Result<Self, WireError> {
        Ok(match kind {
            OUT => Self::Out(body),
            ERR => Self::Err(body),
            GAP => Self::Gap(number(&body)?),
            HEAD => Self::Head(body),
            TAIL => Self::Tail(body),
            RESULT => Self::Result(body),
            EXIT => Self::Exit(serde_json::from_slice(&body)?),
            _ => return Err(WireError::Malformed("unknown report")),
        })
    }
}

fn frame(kind: u8, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER + body.len());
    frame.put_u8(kind);
    frame.put_u32_le(body.len() as u32);
    frame.put_slice(body);
    frame.freeze()
}

fn number(body: &[u8]) -> Result<u64, WireError> {
    let bytes = body.try_into().map_err(|_| WireError::Malformed("expected eight bytes"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Puts frames together again from whatever pieces a pipe yields.
#[derive(Default)]
pub(super) struct Decoder {
    pub(super) buffer: BytesMut,
}

impl Decoder {
    pub(super) fn order(&mut self) -> Result<Option<Order>, WireError> {
        self.frame()?.map(|(kind, body)| Order::decode(kind, body)).transpose()
    }

    pub(super) fn report(&mut self) -> Result<Option<Report>, WireError> {
        self.frame()?.map(|(kind, body)| Report::decode(kind, body)).transpose()
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, WireError> {
        let Some((&kind, rest)) = self.buffer.split_first() else { return Ok(None) };
        let Some(length) = rest.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > BODY_MAX {
            return Err(WireError::Malformed("frame too long"));
        }
        if self.buffer.len() < HEADER + length {
            self.buffer.reserve(HEADER + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        Ok(Some((kind, self.buffer.split_to(length).freeze())))
    }
}
