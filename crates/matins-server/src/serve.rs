//! The front door on the network: listens, over TLS if there is a certificate, and closes within
//! a deadline.
//!
//! Slow and idle clients cost a connection each, and when there are no more of those the one
//! that has kept us waiting longest makes room. A request that is being carried out is never cut
//! off for that.

mod connections;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_server::accept::DefaultAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Handle, Server};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::api::Api;

pub(crate) use connections::Connection;
use connections::{Admission, Connections};

/// How long a client may take over the head of a request, or say nothing between two.
const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Largest head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Requests at once over one HTTP/2 connection.
const STREAMS_PER_CONNECTION: u32 = 100;
/// How long a client may take over the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Certificate and key, in PEM.
#[derive(Clone)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RustlsConfig,
}

impl Tls {
    pub async fn load(cert: PathBuf, key: PathBuf) -> io::Result<Self> {
        let config = RustlsConfig::from_pem_file(&cert, &key).await?;
        Ok(Self { cert, key, config })
    }

    /// Reads both files again; new connections use what they hold now.
    pub async fn reload(&self) -> io::Result<()> {
        self.config.reload_from_pem_file(&self.cert, &self.key).await
    }
}

/// Serves until `shutdown`, then lets requests end for as long as the settings allow.
pub async fn serve(
    api: &Api,
    listener: TcpListener,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let connections = Arc::new(Connections::new(api.settings().connections_max));
    let handle: Handle<SocketAddr> = Handle::new();
    let server = axum_server::from_tcp(listener)?.handle(handle.clone());
    let service = api.router().into_make_service();
    let plain = DefaultAcceptor::new();
    let mut serving: BoxFuture<'_, io::Result<()>> = match tls {
        None => {
            let server = server.acceptor(Admission::new(plain, connections));
            Box::pin(bounded(server).serve(service))
        }
        Some(tls) => {
            let secure = RustlsAcceptor::new(tls.config).handshake_timeout(HANDSHAKE_MAX);
            let server = server.acceptor(Admission::new(secure, connections));
            Box::pin(bounded(server).serve(service))
        }
    };
    tokio::select! {
        result = &mut serving => return result,
        () = shutdown.cancelled() => {}
    }
    // Streams and waiting claims end at once; what is being carried out goes on.
    api.closing().cancel();
    handle.graceful_shutdown(Some(api.settings().drain));
    let result = serving.await;
    api.tracker().close();
    let finished = tokio::time::timeout(api.settings().drain, api.tracker().wait()).await;
    if finished.is_err() {
        tracing::warn!("claims of remote workers were still under way when the server ended");
    }
    result
}

/// Sets every limit that the protocol itself can keep.
fn bounded<A>(server: Server<SocketAddr, A>) -> Server<SocketAddr, A> {
    let mut server = server.first_request_timeout(HEAD_TIME_MAX);
    let http = server.http_builder();
    http.http1().header_read_timeout(HEAD_TIME_MAX).max_buf_size(HEAD_BYTES_MAX);
    http.http2()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(HEAD_TIME_MAX)
        .keep_alive_timeout(HEAD_TIME_MAX);
    server
}
