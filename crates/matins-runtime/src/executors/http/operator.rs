//! Calls of the node itself to addresses that its own file names: alerts. The same guard as for
//! tasks of the file: private addresses yes, link-local and metadata addresses never.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::super::AddressPolicy;
use super::address::judge_url;
use super::client::{Clients, error_text};
use super::{Reach, retry_after};

/// Bytes of an answer that are read: codes come first.
const ANSWER_BYTES_MAX: usize = 16 << 10;

#[derive(Clone)]
pub(crate) struct OperatorCalls {
    clients: Clients,
    policy: Arc<AddressPolicy>,
}

/// The beginning of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Vec<u8>,
}

impl OperatorCalls {
    pub(crate) fn new(connect_timeout: Duration) -> Result<Self, String> {
        let policy = Arc::new(AddressPolicy::default());
        Ok(Self { clients: Clients::new(&policy, Some(connect_timeout))?, policy })
    }

    /// Posts JSON. No error names the URL or a header: they may be secrets.
    pub(crate) async fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: String,
        now: Timestamp,
    ) -> Result<Answer, String> {
        let url: Url = url.parse().map_err(|_| "the URL is not one".to_owned())?;
        judge_url(&url, Reach::Private, &self.policy).map_err(|refused| refused.to_string())?;
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        for (name, value) in headers {
            let name: HeaderName =
                name.parse().map_err(|_| format!("{name:?} is no name of a header"))?;
            let value = HeaderValue::from_str(value)
                .map_err(|_| format!("the value of {name} cannot stand in a header"))?;
            map.insert(name, value);
        }
        let request = self.clients.private().post(url).headers(map).body(body);
        let mut response = request.send().await.map_err(|error| error_text(&error))?;
        let status = response.status().as_u16();
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = wait.and_then(|value| retry_after::parse(value, now));
        let mut body = Vec::new();
        while body.len() < ANSWER_BYTES_MAX {
            match response.chunk().await.map_err(|error| error_text(&error))? {
                Some(chunk) => body.extend_from_slice(&chunk),
                None => break,
            }
        }
        body.truncate(ANSWER_BYTES_MAX);
        Ok(Answer { status, retry_after, body })
    }
}
