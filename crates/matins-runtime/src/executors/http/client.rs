//! Connections, with the addresses judged between resolution and connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response};

use super::super::AddressPolicy;
use super::Reach;
use super::address::{Refused, judge, judge_name};
use super::request::Call;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One client for each reach: connections of one must not serve the other.
#[derive(Clone)]
pub(super) struct Clients {
    private: Client,
    public: Client,
}

impl Clients {
    pub(super) fn new(
        policy: &Arc<AddressPolicy>,
        connect_timeout: Option<Duration>,
    ) -> Result<Self, String> {
        // An error says that the program has chosen a provider already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = |reach| {
            let builder = || {
                Client::builder()
                    .user_agent(concat!("matins/", env!("CARGO_PKG_VERSION")))
                    .redirect(reqwest::redirect::Policy::none())
                    .no_proxy()
                    .connect_timeout(connect_timeout.unwrap_or(CONNECT_TIMEOUT))
                    .dns_resolver(Arc::new(Judge { reach, policy: Arc::clone(policy) }))
            };
            // A host without any CA certificate (a slim image) can still call plain http, and
            // must not be kept from starting; an https call then fails by its own name.
            builder().build().or_else(|error| {
                let error = error_text(&error);
                tracing::warn!("https calls will fail, are CA certificates installed? {error}");
                let built = builder().tls_certs_only([]).build();
                built.map_err(|error| error_text(&error))
            })
        };
        Ok(Self { private: client(Reach::Private)?, public: client(Reach::Public)? })
    }

    /// For addresses that the file names.
    pub(super) fn private(&self) -> &Client {
        &self.private
    }

    pub(super) async fn send(&self, call: &Call) -> reqwest::Result<Response> {
        let client = match call.reach {
            Reach::Private => &self.private,
            Reach::Public => &self.public,
        };
        let request =
            client.request(call.method.clone(), call.url.clone()).headers(call.headers.clone());
        match &call.body {
            Some(body) => request.body(body.clone()).send().await,
            None => request.send().await,
        }
    }
}

/// Resolves a name to those of its addresses that may be called.
struct Judge {
    reach: Reach,
    policy: Arc<AddressPolicy>,
}

impl Resolve for Judge {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, policy) = (self.reach, Arc::clone(&self.policy));
        Box::pin(async move {
            judge_name(name.as_str())?;
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut refused = None;
            let mut allowed = Vec::with_capacity(found.len());
            for address in found {
                match judge(address.ip(), reach, &policy) {
                    Ok(()) => allowed.push(address),
                    Err(reason) => refused = Some(reason),
                }
            }
            match refused {
                Some(reason) if allowed.is_empty() => Err(reason.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// The refusal inside an error, when one is the cause.
pub(super) fn refusal(error: &reqwest::Error) -> Option<&Refused> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// An error with its causes, without the URL.
pub(super) fn error_text(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = causes(error).map(ToString::to_string).collect();
    // The first part is the only one that names the URL.
    if let Some(first) = parts.first_mut() {
        let kind = if error.is_connect() {
            "cannot connect"
        } else if error.is_timeout() {
            "timed out"
        } else if error.is_body() || error.is_decode() {
            "the answer broke off"
        } else if error.is_builder() {
            "cannot make the request"
        } else {
            "the request failed"
        };
        kind.clone_into(first);
    }
    parts.dedup();
    parts.join(": ")
}

fn causes<'a>(
    error: &'a reqwest::Error,
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error as &'a (dyn std::error::Error + 'static)), |e| e.source())
}
