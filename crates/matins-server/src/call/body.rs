//! Reading bodies: bounded in size and in time, whatever the client does.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{Method, header};
use futures_util::StreamExt;
use matins_core::limits::Limits;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::strict::Value;
use crate::gate::{JSON, content_type};
use crate::problem::{Code, Problem, Result};

/// Room for everything in a body beside the payload.
const ENVELOPE_BYTES: usize = 256 << 10;

/// How long a client may say nothing in the midst of a body.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// How long a whole body may take.
const BODY_TIME_MAX: Duration = Duration::from_secs(300);
/// How much of a refused body is read away, so that the client gets to see the answer.
const DRAIN_BYTES: usize = 128 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// What may limit the size of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
}

impl Limit {
    pub(crate) fn payload(limits: &Limits) -> Self {
        Self { name: "payload_bytes", bytes: limits.payload_bytes + ENVELOPE_BYTES }
    }

    pub(crate) fn batch(limits: &Limits) -> Self {
        Self { name: "batch_bytes", bytes: limits.batch_bytes }
    }

    fn exceeded(self) -> Problem {
        let Self { name, bytes } = self;
        let detail =
            format!("the body is larger than {bytes} bytes, which the limit {name} allows");
        Problem::new(Code::TooLarge, detail)
    }
}

/// A body as it comes in, never more of it than its limit.
pub(crate) struct Incoming {
    body: axum::body::BodyDataStream,
    limit: Limit,
    read: usize,
    deadline: tokio::time::Instant,
    /// The client waits for leave before it sends.
    waits: bool,
}

impl Incoming {
    /// Refuses at once what says itself that it is too large.
    pub(crate) async fn new(parts: &Parts, body: Body, limit: Limit) -> Result<Self> {
        let mut incoming = Self {
            body: body.into_data_stream(),
            limit,
            read: 0,
            deadline: tokio::time::Instant::now() + BODY_TIME_MAX,
            waits: parts.headers.contains_key(header::EXPECT),
        };
        let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
        if length.and_then(|v| v.parse::<u64>().ok()).is_some_and(|n| n > limit.bytes as u64) {
            incoming.drain().await;
            return Err(limit.exceeded());
        }
        Ok(incoming)
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let pause = tokio::time::Instant::now() + PAUSE_MAX;
        let chunk = tokio::time::timeout_at(pause.min(self.deadline), self.body.next()).await;
        let slow = |_| Problem::new(Code::RequestTimeout, "the body did not come in time");
        let Some(chunk) = chunk.map_err(slow)? else { return Ok(None) };
        let broken = |_| Problem::new(Code::InvalidJson, "the body broke off");
        let chunk = chunk.map_err(broken)?;
        self.read += chunk.len();
        if self.read > self.limit.bytes {
            self.drain().await;
            return Err(self.limit.exceeded());
        }
        Ok(Some(chunk))
    }

    pub(crate) async fn all(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    async fn drain(&mut self) {
        if self.waits {
            return;
        }
        let read_away = async {
            let mut drained = 0;
            while let Some(Ok(chunk)) = self.body.next().await {
                drained += chunk.len();
                if drained > DRAIN_BYTES {
                    return;
                }
            }
        };
        // Whether it came to an end makes no difference to the answer.
        let _ = tokio::time::timeout(DRAIN_TIME, read_away).await;
    }
}

/// What an operation takes as its body, for the description.
pub(crate) struct Shape {
    pub(crate) required: bool,
    pub(crate) content: Vec<(&'static str, Schema)>,
}

/// Something that a body can be read into.
pub(crate) trait Input: Sized + Send + 'static {
    /// `None`: no body.
    fn shape(generator: &mut SchemaGenerator) -> Option<Shape>;

    fn read(
        parts: &Parts,
        body: Body,
        limits: &Limits,
    ) -> impl Future<Output = Result<Self>> + Send;
}

/// A type that is a JSON object on the wire.
pub(crate) trait Object: DeserializeOwned + JsonSchema + Send + 'static {
    /// May be as large as a batch.
    const WIDE: bool = false;
    /// Fields that may be sent back and are ignored.
    const IGNORED: &'static [&'static str] = &[];
}

/// A body that must be there.
pub(crate) struct Json<T>(pub T);

/// A body that may be left out; every field of it has a default.
pub(crate) struct Maybe<T>(pub T);

/// No body: an empty object is as good.
pub(crate) struct Nothing;

/// An object without fields.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Empty {}

impl Object for Empty {}

async fn read_json<T: Object>(parts: &Parts, body: Body, limits: &Limits) -> Result<Option<T>> {
    // What a GET brings has no meaning (RFC 9110), and what it says of that has none either.
    if parts.method == Method::GET || content_type(&parts.headers, &[JSON])?.is_none() {
        return Ok(None);
    }
    let limit = if T::WIDE { Limit::batch(limits) } else { Limit::payload(limits) };
    let bytes = Incoming::new(parts, body, limit).await?.all().await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    decode(&bytes).map(Some)
}

/// Reads one object from a body's bytes.
pub(crate) fn decode<T: Object>(bytes: &[u8]) -> Result<T> {
    Ok(parse(bytes)?.ignoring(T::IGNORED).decode()?)
}

/// Checks that bytes are JSON in UTF-8.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value<'_>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let detail = format!("the body is not UTF-8 at byte {}", error.valid_up_to() + 1);
        Problem::new(Code::InvalidJson, detail)
    })?;
    Value::parse(text).map_err(|error| {
        Problem::new(Code::InvalidJson, format!("the body is not valid JSON: {error}"))
    })
}

fn json_shape<T: Object>(generator: &mut SchemaGenerator, required: bool) -> Shape {
    Shape { required, content: vec![(JSON, generator.subschema_for::<T>())] }
}

impl<T: Object> Input for Json<T> {
    fn shape(generator: &mut SchemaGenerator) -> Option<Shape> {
        Some(json_shape::<T>(generator, true))
    }

    async fn read(parts: &Parts, body: Body, limits: &Limits) -> Result<Self> {
        let read = read_json(parts, body, limits).await?;
        let missing = || Problem::new(Code::InvalidJson, "a body is required: a JSON object");
        read.map(Self).ok_or_else(missing)
    }
}

impl<T: Object + Default> Input for Maybe<T> {
    fn shape(generator: &mut SchemaGenerator) -> Option<Shape> {
        Some(json_shape::<T>(generator, false))
    }

    async fn read(parts: &Parts, body: Body, limits: &Limits) -> Result<Self> {
        Ok(Self(read_json(parts, body, limits).await?.unwrap_or_default()))
    }
}

impl Input for Nothing {
    fn shape(_: &mut SchemaGenerator) -> Option<Shape> {
        None
    }

    async fn read(parts: &Parts, body: Body, limits: &Limits) -> Result<Self> {
        let _: Option<Empty> = read_json(parts, body, limits).await?;
        Ok(Self)
    }
}
