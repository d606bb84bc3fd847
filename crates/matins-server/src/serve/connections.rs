//! How many connections there may be, and which one gives way when there are too many.
//!
//! A connection *waits* while it shakes hands, while the head or the body of a request comes in,
//! and between two requests; it is *busy* while a request is carried out or a stream is open.
//! When all places are taken, the connection that has waited longest is closed. So a thousand
//! clients that send a byte a second keep nobody out.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum_server::accept::Accept;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::Service;

/// Everybody who is connected.
pub(super) struct Connections {
    max: usize,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// Grows with every change from busy to waiting: the smallest has waited longest.
    clock: u64,
    taken: usize,
    waiting: BTreeMap<u64, CancellationToken>,
}

impl Connections {
    pub(super) fn new(max: usize) -> Self {
        Self { max, places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; `None` when everybody is busy.
    fn admit(self: &Arc<Self>) -> Option<Connection> {
        let mut places = self.places();
        if places.taken >= self.max {
            // Its place is free at once, though it takes a moment to notice.
            let (_, closed) = places.waiting.pop_first()?;
            closed.cancel();
            places.taken -= 1;
        }
        places.taken += 1;
        let closed = CancellationToken::new();
        let place = Mutex::new(Place { busy: 0, since: None });
        let connection = Connection(Arc::new(Shared { connections: self.clone(), closed, place }));
        connection.0.wait(&mut places);
        Some(connection)
    }
}

/// One connection. As a request extension it lets long work say that it is going on.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    connections: Arc<Connections>,
    closed: CancellationToken,
    place: Mutex<Place>,
}

struct Place {
    /// Requests and streams under way.
    busy: usize,
    /// Its key among those that wait.
    since: Option<u64>,
}

impl Shared {
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, places: &mut Places) {
        places.clock += 1;
        places.waiting.insert(places.clock, self.closed.clone());
        self.place().since = Some(places.clock);
    }

    fn change(&self, busy: isize) {
        let mut places = self.connections.places();
        let (before, after, since) = {
            let mut place = self.place();
            let before = place.busy;
            place.busy = before.saturating_add_signed(busy);
            (before, place.busy, place.since)
        };
        match (before, after, since) {
            (0, 1.., Some(since)) => {
                places.waiting.remove(&since);
                self.place().since = None;
            }
            (1.., 0, _) if !self.closed.is_cancelled() => self.wait(&mut places),
            _ => {}
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut places = self.connections.places();
        if let Some(since) = self.place().since {
            places.waiting.remove(&since);
        }
        // One that gave way has given its place away already.
        if !self.closed.is_cancelled() {
            places.taken -= 1;
        }
    }
}

/// While it lives, the connection is busy.
pub(crate) struct Busy(Arc<Shared>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(-1);
    }
}

/// While it lives, the connection waits for its client in the midst of a request.
pub(crate) struct Waiting(Arc<Shared>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.change(1);
    }
}

impl Connection {
    pub(crate) fn busy(&self) -> Busy {
        self.0.change(1);
        Busy(self.0.clone())
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.0.change(-1);
        Waiting(self.0.clone())
    }
}

/// Admits connections before anything is read from them.
#[derive(Clone)]
pub(super) struct Admission<A> {
    inner: A,
    connections: Arc<Connections>,
}

impl<A> Admission<A> {
    pub(super) fn new(inner: A, connections: Arc<Connections>) -> Self {
        Self { inner, connections }
    }
}

impl<A, I, S> Accept<I, S> for Admission<A>
where
    A: Accept<I, S> + Clone + Send + Sync + 'static,
    A::Future: Send + 'static,
    A::Stream: Send + 'static,
    A::Service: Send + 'static,
{
    type Stream = Watched<A::Stream>;
    type Service = Marked<A::Service>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let Some(connection) = self.connections.admit() else {
            tracing::warn!(max = self.connections.max, "refused a connection: all are busy");
            return Box::pin(async { Err(gave_way()) });
        };
        let accepted = self.inner.accept(stream, service);
        Box::pin(async move {
            let (stream, service) = tokio::select! {
                accepted = accepted => accepted?,
                () = connection.0.closed.cancelled() => return Err(gave_way()),
            };
            let closed = Box::pin(connection.0.closed.clone().cancelled_owned());
            Ok((Watched { stream, closed }, Marked { service, connection }))
        })
    }
}

fn gave_way() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection gave way to others")
}

/// A stream that breaks off when its connection gives way.
pub(super) struct Watched<T> {
    stream: T,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<T> Watched<T> {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(context) {
            Poll::Ready(()) => Err(gave_way()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A service that marks its connection busy for as long as it works on a request.
#[derive(Clone)]
pub(super) struct Marked<S> {
    service: S,
    connection: Connection,
}

impl<S, B> Service<axum::http::Request<B>> for Marked<S>
where
    S: Service<axum::http::Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: axum::http::Request<B>) -> Self::Future {
        let busy = self.connection.busy();
        request.extensions_mut().insert(self.connection.clone());
        let answered = self.service.call(request);
        Box::pin(async move {
            let _busy = busy;
            answered.await
        })
    }
}
