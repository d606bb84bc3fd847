//! What an answer means, and how much of it is kept.

use jiff::Timestamp;
use matins_core::Json;
use matins_core::executor::Finished;
use matins_core::lifecycle::{Outcome, RetryAfter, Trace};
use matins_core::limits::Limits;
use matins_core::task::{ErrorClass, Output, TaskError};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::client::error_text;
use super::request::Call;
use super::retry_after;
use crate::process::Masker;

/// Of a body that is too large to keep, this much is read to learn its size; then it counts as
/// at least that long and the connection is dropped.
const BODY_READ_BYTES_MAX: u64 = 16 << 20;

/// An answer that is the end of the call.
pub(super) async fn finished(
    call: &Call,
    mut response: Response,
    limits: &Limits,
    now: Timestamp,
) -> Finished {
    let status = response.status();
    let announced = response.content_length();
    let headers = std::mem::take(response.headers_mut());
    let kept_max = limits.result_bytes.max(limits.output_bytes);
    let body = match read(&mut response, kept_max, announced).await {
        Ok(body) => body,
        Err(error) => {
            let text = format!("{} answered {status}, then {}", call.target, error_text(&error));
            let outcome = failed(call, ErrorClass::Network, &text, false);
            return with_status(outcome, status, Output::default());
        }
    };
    let body = Body { kept: masked(call, body.kept), ..body };
    if status.is_success() {
        let outcome = completed(&headers, &body, limits);
        return with_status(outcome, status, Output::default());
    }
    let (class, permanent) = class_of(status);
    let text = format!("{} answered {status}", call.target);
    let mut outcome = failed(call, class, &text, permanent);
    if let Outcome::Failed { retry_after, permanent: false, .. } = &mut outcome {
        let wanted = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wanted.and_then(|value| retry_after::parse(value, now));
        *retry_after = wait.map(RetryAfter::In);
    }
    // The body of a failure says what went wrong: it is this attempt's output.
    with_status(outcome, status, body.into_output(limits.output_bytes))
}

/// No answer came.
pub(super) fn broken(call: &Call, error: &reqwest::Error) -> Finished {
    let text = format!("{}: {}", call.target, error_text(error));
    failed(call, ErrorClass::Network, &text, false).into()
}

/// A redirect that is not followed. Asked again, the server would say the same.
pub(super) fn odd(call: &Call, status: StatusCode, text: &str) -> Finished {
    let text = format!("{} answered {status}: {text}", call.target);
    with_status(failed(call, ErrorClass::Http3xx, &text, true), status, Output::default())
}

fn with_status(outcome: Outcome, status: StatusCode, output: Output) -> Finished {
    let trace = Trace { exit_code: None, http_status: Some(status.as_u16()), output };
    Finished { outcome, trace }
}

fn failed(call: &Call, class: ErrorClass, text: &str, permanent: bool) -> Outcome {
    let error = TaskError::new(class, call.masked(text));
    Outcome::Failed { error, permanent, retry_after: None }
}

/// The class of a status that is no success, and whether trying again is hopeless.
fn class_of(status: StatusCode) -> (ErrorClass, bool) {
    match status.as_u16() {
        300..=399 => (ErrorClass::Http3xx, true),
        408 | 409 | 425 | 429 => (ErrorClass::Http4xx, false),
        400..=499 => (ErrorClass::Http4xx, true),
        // A server that speaks in codes of its own, or switches protocols unasked.
        100..=199 => (ErrorClass::Network, false),
        _ => (ErrorClass::Http5xx, false),
    }
}

struct Body {
    /// The beginning, or all of it.
    kept: Vec<u8>,
    /// The size as it arrived; when it is too large to read, as it was announced or found.
    total: u64,
    is_whole: bool,
}

async fn read(
    response: &mut Response,
    kept_max: usize,
    announced: Option<u64>,
) -> reqwest::Result<Body> {
    let mut body = Body { kept: Vec::new(), total: 0, is_whole: true };
    while let Some(chunk) = response.chunk().await? {
        body.total += chunk.len() as u64;
        let room = kept_max - body.kept.len();
        body.kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.total > kept_max as u64 {
            body.is_whole = false;
            if let Some(size) = announced {
                body.total = size;
                break;
            }
            if body.total > BODY_READ_BYTES_MAX {
                break;
            }
        }
    }
    Ok(body)
}

fn masked(call: &Call, bytes: Vec<u8>) -> Vec<u8> {
    let mut masker = Masker::new(&call.secrets);
    if !masker.is_needed() {
        return bytes;
    }
    let mut shown = masker.push(&bytes);
    shown.extend(masker.finish());
    shown
}

fn completed(headers: &HeaderMap, body: &Body, limits: &Limits) -> Outcome {
    let too_large =
        |size: u64| Outcome::Completed { result: None, result_dropped_bytes: Some(size) };
    if !body.is_whole || body.kept.len() > limits.result_bytes {
        return too_large(body.total);
    }
    if body.kept.is_empty() {
        return Outcome::Completed { result: None, result_dropped_bytes: None };
    }
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let is_json = content_type.is_none_or(|text| {
        let media = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        media == "application/json" || media.ends_with("+json")
    });
    let text = std::str::from_utf8(&body.kept).ok();
    let json = text.filter(|_| is_json).and_then(|text| Json::parse(text).ok());
    let json = json.unwrap_or_else(|| Json::string(&String::from_utf8_lossy(&body.kept)));
    if json.byte_len() > limits.result_bytes {
        return too_large(json.byte_len() as u64);
    }
    Outcome::Completed { result: Some(json), result_dropped_bytes: None }
}

impl Body {
    /// Of a body the beginning tells most; there is no tail to keep.
    fn into_output(self, limit: usize) -> Output {
        let mut bytes = self.kept;
        let length = bytes.len() as u64;
        bytes.truncate(limit);
        let missing = if self.is_whole { length } else { self.total.max(length) };
        let gap_at = bytes.len();
        Output { dropped: missing - gap_at as u64, gap_at, bytes }
    }
}
