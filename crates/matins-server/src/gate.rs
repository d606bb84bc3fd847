//! What is judged of a request before its body is read: the host it was meant for, the page it
//! came from, and the type of what it brings.
//!
//! A web page that an operator happens to visit must not be able to drive a server on loopback:
//! not by a name that resolves to 127.0.0.1, not by a form, not by a `fetch` that needs no
//! preflight. No CORS header is ever sent.

use std::net::IpAddr;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

use crate::problem::{Code, Problem, Result};

/// The names under which requests are accepted: loopback, any address written out (a name is
/// what rebinding needs), and these.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    names: Vec<String>,
    /// Scheme and authority of `public_url`.
    public_origin: Option<String>,
}

impl Hosts {
    /// `allowed`: names; one that begins with a dot stands for every name below it.
    pub fn new(allowed: &[String], public_url: Option<&str>) -> Self {
        let mut names: Vec<String> = allowed.iter().map(|name| name_of(name)).collect();
        let public = public_url.and_then(|url| url.parse::<Uri>().ok());
        let public_origin = public.as_ref().and_then(|url| {
            let authority = url.authority()?.as_str().to_ascii_lowercase();
            Some(format!("{}://{authority}", url.scheme_str()?))
        });
        names.extend(public.as_ref().and_then(Uri::host).map(name_of));
        Self { names, public_origin }
    }

    fn allow(&self, authority: &str) -> bool {
        let name = name_of(authority);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost"
            || name.ends_with(".localhost")
            || bare.parse::<IpAddr>().is_ok()
            || self.names.iter().any(|known| match known.strip_prefix('.') {
                Some(parent) => name.strip_suffix(parent).is_some_and(|sub| sub.ends_with('.')),
                None => name == *known,
            })
    }

    /// Refuses what was meant for another host, or sent by another site's page.
    pub fn check(&self, parts: &Parts) -> Result<()> {
        let meant = authorities(parts)?;
        if let Some(foreign) = meant.iter().find(|authority| !self.allow(authority)) {
            let shown: String = foreign.chars().take(100).collect();
            return Err(forbidden(format!("this server is not called {shown:?}"))
                .hint("add the name to allowed_hosts, or set public_url"));
        }
        let mut origins = parts.headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => Ok(()),
            (Some(origin), None) if self.is_own(origin, &meant) => Ok(()),
            _ => Err(forbidden("requests of pages of other sites are not taken")),
        }
    }

    fn is_own(&self, origin: &HeaderValue, meant: &[String]) -> bool {
        let Ok(origin) = origin.to_str().map(str::to_ascii_lowercase) else { return false };
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let default_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return false,
        };
        let same = |own: &String| {
            let own = own.to_ascii_lowercase();
            own == authority || own.strip_suffix(default_port) == Some(authority)
        };
        meant.iter().any(same) || self.public_origin.as_ref() == Some(&origin)
    }
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Forbidden, detail)
}

/// Every authority that the request names: its target, and its `Host`.
fn authorities(parts: &Parts) -> Result<Vec<String>> {
    let mut found: Vec<String> =
        parts.uri.authority().map(ToString::to_string).into_iter().collect();
    for host in parts.headers.get_all(header::HOST) {
        match host.to_str() {
            Ok(host) => found.push(host.to_owned()),
            Err(_) => return Err(forbidden("the Host header is not readable")),
        }
    }
    if found.is_empty() {
        return Err(forbidden("the Host header is missing"));
    }
    Ok(found)
}

/// The host of an authority, without its port, in small letters, without a closing dot.
fn name_of(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => {
            host
        }
        _ => authority,
    };
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Content types that a page may send to another site without asking first.
const SIMPLE: [&str; 3] =
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];

pub const JSON: &str = "application/json";
pub const NDJSON: &str = "application/x-ndjson";

/// Checks what kind of body comes, if any does. `Ok(None)`: none.
pub fn content_type(
    headers: &HeaderMap,
    accepted: &'static [&'static str],
) -> Result<Option<&'static str>> {
    let expected = accepted.join(" or ");
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
            && !headers.contains_key(header::TRANSFER_ENCODING);
        if empty {
            return Ok(None);
        }
        let detail = format!("a body needs a Content-Type: expected {expected}");
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    };
    let text = given.to_str().unwrap_or_default();
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    let kind = kind.trim().to_ascii_lowercase();
    if SIMPLE.contains(&kind.as_str()) {
        let detail = format!("bodies of type {kind} are not taken: expected {expected}");
        return Err(forbidden(detail).hint(format!("send Content-Type: {}", accepted[0])));
    }
    let utf8 = parameters.split(';').all(|parameter| {
        let parameter = parameter.trim().to_ascii_lowercase();
        match parameter.strip_prefix("charset=") {
            Some(charset) => matches!(charset.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"),
            None => true,
        }
    });
    match accepted.iter().find(|known| **known == kind) {
        Some(known) if utf8 => Ok(Some(known)),
        _ => {
            let shown: String = text.chars().take(100).collect();
            let detail = format!("expected a body of type {expected} in UTF-8, got {shown:?}");
            Err(Problem::new(Code::UnsupportedMediaType, detail))
        }
    }
}

/// Headers of every answer: nothing of it may be sniffed, framed, kept or run.
pub const SAFE: [(HeaderName, HeaderValue); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn parts(host: Option<&str>, origin: Option<&str>) -> Parts {
        let mut request = Request::get("/api/v1/tasks");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn hosts() -> Hosts {
        let allowed = ["Box".to_owned(), ".corp.example".to_owned()];
        Hosts::new(&allowed, Some("https://matins.example/"))
    }

    #[test]
    fn known_hosts_pass_and_names_that_could_be_rebound_do_not() {
        for host in [
            "localhost",
            "LOCALHOST:6284",
            "a.localhost",
            "127.0.0.1:6284",
            "[::1]:6284",
            "[::1]",
            "10.0.0.7",
            "box:1",
            "x.corp.example",
            "matins.example:443",
            "localhost.:6284",
        ] {
            assert!(hosts().check(&parts(Some(host), None)).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:6284",
            "corp.example",
            "xcorp.example",
            "",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "matins.example.evil",
            "evil@localhost",
        ] {
            let problem = hosts().check(&parts(Some(host), None)).unwrap_err();
            assert_eq!(problem.code, Code::Forbidden, "{host}");
        }
        assert!(hosts().check(&parts(None, None)).is_err());
    }

    #[test]
    fn only_pages_of_this_server_may_ask() {
        for (host, origin) in [
            ("127.0.0.1:6284", "http://127.0.0.1:6284"),
            ("localhost:6284", "http://localhost:6284"),
            ("127.0.0.1:6284", "https://matins.example"),
            ("matins.example", "https://matins.example"),
            ("matins.example:443", "https://matins.example"),
        ] {
            assert!(hosts().check(&parts(Some(host), Some(origin))).is_ok(), "{host} {origin}");
        }
        for origin in [
            "null",
            "https://evil.example",
            "http://localhost:3000",
            "http://127.0.0.1",
            "",
            "file://",
            "https://matins.example.evil",
            "http://matins.example",
        ] {
            let parts = parts(Some("127.0.0.1:6284"), Some(origin));
            assert!(hosts().check(&parts).is_err(), "{origin}");
        }
    }

    #[test]
    fn content_types() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            content_type(&headers, &[JSON]).map_err(|problem| problem.code)
        };
        assert_eq!(of("application/json"), Ok(Some(JSON)));
        assert_eq!(of("Application/JSON; charset=UTF-8"), Ok(Some(JSON)));
        assert_eq!(of("application/json; charset=latin1"), Err(Code::UnsupportedMediaType));
        assert_eq!(of("text/xml"), Err(Code::UnsupportedMediaType));
        for simple in [
            "text/plain",
            "text/plain;charset=UTF-8",
            "multipart/form-data; boundary=x",
            "application/x-www-form-urlencoded",
        ] {
            assert_eq!(of(simple), Err(Code::Forbidden), "{simple}");
        }
        let mut bare = HeaderMap::new();
        assert_eq!(content_type(&bare, &[JSON]).unwrap(), None);
        bare.insert(header::CONTENT_LENGTH, "5".parse().unwrap());
        assert!(content_type(&bare, &[JSON]).is_err());
    }
}
