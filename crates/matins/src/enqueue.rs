//! Enqueueing with options, in the order they are thought of.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;
use matins_core::Json;
use matins_core::duration::Timeout;
use matins_core::request::{EnqueueRequest, FieldError};
use matins_core::retry::Backoff;
use matins_core::task::{OnDuplicate, TaskId};
use matins_runtime::client::Answer;
use matins_runtime::{Client, ClientError};

use crate::Task;
use crate::transaction::Transaction;

/// Name under which the library's tasks are created.
const CREATED_BY: &str = "library";

/// A task about to be enqueued; `.await` it.
#[must_use = "nothing is enqueued until it is awaited"]
pub struct Enqueue {
    client: Client,
    request: Result<EnqueueRequest, FieldError>,
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty => |$request:ident, $value:ident| $body:expr;)+) => {
        $($(#[$doc])*
        pub fn $name(mut self, $value: $type) -> Self {
            if let Ok($request) = &mut self.request {
                $body;
            }
            self
        })+
    };
}

impl Enqueue {
    pub(crate) fn new<T: Task>(client: Client, payload: &T) -> Self {
        Self { client, request: request(payload) }
    }

    /// One completion per key, however often it is enqueued.
    pub fn execution_key(mut self, key: impl Into<String>) -> Self {
        if let Ok(request) = &mut self.request {
            request.execution_key = Some(key.into());
        }
        self
    }

    options! {
        /// Not before that time.
        run_at: Timestamp => |request, at| request.run_at = Some(at);
        /// Not before that long from now.
        delay: Duration => |request, delay| request.delay = Some(delay);
        /// Cancelled when it has not begun by then.
        expires_at: Timestamp => |request, at| request.expires_at = Some(at);
        /// −100 to 100, higher first.
        priority: i16 => |request, priority| request.priority = Some(priority);
        max_retries: u32 => |request, retries| request.max_retries = Some(retries);
        backoff: Backoff => |request, backoff| request.backoff = Some(backoff);
        timeout: Timeout => |request, timeout| request.timeout = Some(timeout);
        on_duplicate: OnDuplicate => |request, wish| request.on_duplicate = wish;
        /// The same id again is the same request again. Not with an `execution_key`.
        id: TaskId => |request, id| request.id = Some(id);
        tag: &str => |request, tag| request.tags.push(tag.to_owned());
        pool: &str => |request, pool| request.pool = Some(pool.to_owned());
        concurrency_key: &str => |request, key| request.concurrency_key = Some(key.to_owned());
    }

    /// Enqueues in the caller's own transaction: it exists when that commits.
    pub async fn in_transaction(self, tx: &mut impl Transaction) -> Result<Answer, ClientError> {
        let task = self.client.resolve(self.request?, CREATED_BY).await?;
        let now = self.client.now();
        let outcome = tx.enqueue(&task, now).await?;
        self.client.answered(&task, outcome, now)
    }
}

fn request<T: Task>(payload: &T) -> Result<EnqueueRequest, FieldError> {
    let payload = Json::of(payload)
        .map_err(|error| FieldError::new("payload", format!("cannot be written: {error}")))?;
    Ok(EnqueueRequest::new(T::TYPE, payload))
}

impl IntoFuture for Enqueue {
    type Output = Result<Answer, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.enqueue(self.request?, CREATED_BY).await })
    }
}

/// Many tasks in one commit; `.await` it. Each answer stands for itself.
#[must_use = "nothing is enqueued until it is awaited"]
pub struct EnqueueMany {
    client: Client,
    requests: Vec<Result<EnqueueRequest, FieldError>>,
}

impl EnqueueMany {
    pub(crate) fn new<T: Task>(client: Client, payloads: impl IntoIterator<Item = T>) -> Self {
        let requests = payloads.into_iter().map(|payload| request(&payload)).collect();
        Self { client, requests }
    }

    /// Gives each task the key that `key` makes of its place in the batch.
    pub fn execution_keys(mut self, key: impl Fn(usize) -> String) -> Self {
        for (n, request) in self.requests.iter_mut().enumerate() {
            if let Ok(request) = request {
                request.execution_key = Some(key(n));
            }
        }
        self
    }
}

impl IntoFuture for EnqueueMany {
    type Output = Result<Vec<Result<Answer, ClientError>>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.enqueue_many(self.requests, CREATED_BY).await })
    }
}
