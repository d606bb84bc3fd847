//! What is called, from the file or from a payload.

use std::collections::BTreeMap;

use bytes::Bytes;
use matins_core::Json;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION,
};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::{HttpConfig, Setting};
use super::Reach;
use crate::process::with_parts;

/// Headers that frame the message; the client sets them, nobody else.
const FRAMING: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// One call, ready to be sent.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) url: Url,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Bytes>,
    pub(super) reach: Reach,
    /// Names the target in errors.
    pub(super) target: String,
    /// Values that no text for people may hold.
    pub(super) secrets: Vec<String>,
}

/// A wrong entry in the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct HttpConfigError {
    pub field: String,
    pub message: String,
}

/// A type's call, but for what the task adds.
pub(super) struct Template {
    call: Call,
    /// The payload is the body.
    sends_payload: bool,
}

impl Template {
    pub(super) fn new(config: &HttpConfig) -> Result<Self, HttpConfigError> {
        let wrong = |field: &str| {
            let field = field.to_owned();
            move |message| HttpConfigError { field: field.clone(), message }
        };
        let url = parse_url(&config.url.value, config.url.secret).map_err(wrong("url"))?;
        let method = parse_method(&config.method).map_err(wrong("method"))?;
        let mut headers = HeaderMap::new();
        for (name, setting) in &config.headers {
            let field = format!("headers.{name}");
            let (name, mut value) = parse_header(name, &setting.value).map_err(wrong(&field))?;
            value.set_sensitive(setting.secret);
            headers.append(name, value);
        }
        let settings = config.headers.values().chain([&config.url]).chain(&config.body);
        let secret = settings.filter(|setting| setting.secret);
        let secrets = secret.flat_map(|setting| with_parts(&setting.value)).collect();
        let body = config.body.as_ref().map(|Setting { value, .. }| Bytes::from(value.clone()));
        let has_body = !matches!(method, Method::GET | Method::HEAD);
        let target = if config.url.secret { method.to_string() } else { target(&method, &url) };
        let sends_payload = body.is_none() && has_body;
        let call = Call { url, method, headers, body, reach: Reach::Private, target, secrets };
        Ok(Self { call, sends_payload })
    }

    pub(super) fn call(&self, payload: &Json) -> Call {
        let mut call = self.call.clone();
        if self.sends_payload {
            call.body = Some(Bytes::copy_from_slice(payload.as_str().as_bytes()));
            call.headers.entry(CONTENT_TYPE).or_insert(JSON);
        }
        call
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EXPECTED: &str = "expected url, method, headers, body";

impl Call {
    /// `{"url", "method", "headers", "body"}`: a string as body is sent as it is, anything else
    /// as the JSON text it was given as.
    pub(super) fn from_payload(payload: &Json) -> Result<Self, String> {
        let fields: Result<BTreeMap<String, Box<RawValue>>, _> = payload.decode();
        let mut fields = fields.map_err(|_| format!("payload: {EXPECTED}, found no object"))?;
        let mut text = |name: &str| {
            let raw = fields.remove(name)?;
            let text: Result<String, _> = serde_json::from_str(raw.get());
            Some(text.map_err(|_| format!("payload: {name}: expected a string, found {raw}")))
        };
        let url = text("url").ok_or("payload: url is missing")??;
        let url = parse_url(&url, false).map_err(|message| format!("payload: url: {message}"))?;
        let method = text("method").transpose()?;
        let headers = fields.remove("headers");
        let body = fields.remove("body").filter(|body| body.get() != "null");
        if let Some(unknown) = fields.keys().next() {
            return Err(format!("payload: unknown field {unknown:?}, {EXPECTED}"));
        }
        let method = match method {
            Some(name) => {
                parse_method(&name).map_err(|message| format!("payload: method: {message}"))?
            }
            None if body.is_some() => Method::POST,
            None => Method::GET,
        };
        let mut headers = headers.map(|raw| payload_headers(&raw)).transpose()?.unwrap_or_default();
        let body = body.map(|raw| {
            if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
                return Bytes::from(text);
            }
            headers.entry(CONTENT_TYPE).or_insert(JSON);
            Bytes::copy_from_slice(raw.get().as_bytes())
        });
        let target = target(&method, &url);
        let secrets = url.password().map(str::to_owned).into_iter().collect();
        Ok(Self { url, method, headers, body, reach: Reach::Public, target, secrets })
    }

    /// The call that a redirect asks for. A target that the operator did not write has no more
    /// reach than a payload's URL and gets no credentials.
    pub(super) fn redirected(mut self, status: StatusCode, to: Url) -> Self {
        let becomes_get = match status.as_u16() {
            303 => self.method != Method::HEAD,
            301 | 302 => self.method == Method::POST,
            _ => false,
        };
        if becomes_get {
            self.method = Method::GET;
            self.body = None;
            self.headers.remove(CONTENT_TYPE);
        }
        if !is_same_site(&self.url, &to) {
            self.reach = Reach::Public;
            for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION] {
                self.headers.remove(name);
            }
            let secret: Vec<HeaderName> = self
                .headers
                .iter()
                .filter(|(_, value)| value.is_sensitive())
                .map(|(name, _)| name.clone())
                .collect();
            for name in secret {
                self.headers.remove(name);
            }
        }
        self.url = to;
        self
    }
}

/// The same server, or the same host's move from http to https.
fn is_same_site(from: &Url, to: &Url) -> bool {
    let ports = (from.port_or_known_default(), to.port_or_known_default());
    let is_upgrade = (from.scheme(), to.scheme()) == ("http", "https");
    from.host_str() == to.host_str()
        && (ports.0 == ports.1 && from.scheme() == to.scheme()
            || is_upgrade && ports == (Some(80), Some(443)))
}

fn target(method: &Method, url: &Url) -> String {
    format!("{method} {}", url.host_str().unwrap_or_default())
}

fn parse_url(text: &str, secret: bool) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| {
        let shown = if secret { String::new() } else { format!(" {text:?}") };
        format!("expected an absolute URL, found{shown}: {error}")
    })?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("scheme {other:?} is refused, expected http or https")),
    }
}

fn parse_method(name: &str) -> Result<Method, String> {
    match Method::from_bytes(name.to_ascii_uppercase().as_bytes()) {
        Ok(Method::CONNECT) | Err(_) => Err(format!("{name:?} is not a method that can be used")),
        Ok(method) => Ok(method),
    }
}

/// Says what is wrong without repeating the value, which may be secret.
fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed = HeaderName::try_from(name).map_err(|_| "not a header name".to_owned())?;
    if FRAMING.contains(&parsed.as_str()) {
        return Err("frames the message and cannot be set".to_owned());
    }
    let value = HeaderValue::try_from(value)
        .map_err(|_| "the value has characters that a header cannot hold".to_owned())?;
    Ok((parsed, value))
}

fn payload_headers(raw: &RawValue) -> Result<HeaderMap, String> {
    let expected = || "payload: headers: expected an object of strings".to_owned();
    let entries: BTreeMap<String, Value> =
        serde_json::from_str(raw.get()).map_err(|_| expected())?;
    let mut headers = HeaderMap::new();
    for (name, value) in entries {
        let Value::String(value) = value else {
            return Err(format!("payload: headers.{name}: expected a string, found {value}"));
        };
        let (name, value) = parse_header(&name, &value)
            .map_err(|message| format!("payload: headers.{name}: {message}"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(payload: &str) -> Result<Call, String> {
        Call::from_payload(&Json::parse(payload).unwrap())
    }

    #[test]
    fn a_payload_is_read() {
        let full = call(
            r#"{"url":"https://a.test/x","method":"put","headers":{"X-A":"1"},"body":{"n":1E400}}"#,
        );
        let full = full.ok().unwrap();
        assert_eq!((full.method, full.headers["x-a"].as_bytes()), (Method::PUT, &b"1"[..]));
        assert_eq!(full.body.unwrap(), r#"{"n":1E400}"#);
        assert_eq!(full.headers[CONTENT_TYPE], "application/json");
        let text = call(r#"{"url":"http://example.com","body":"a=b"}"#).ok().unwrap();
        assert_eq!((text.method, text.body.unwrap()), (Method::POST, Bytes::from("a=b")));
        assert!(!text.headers.contains_key(CONTENT_TYPE));
        let plain = call(r#"{"url":"http://example.com"}"#).ok().unwrap();
        assert_eq!((plain.method, plain.body), (Method::GET, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (payload, expected) in [
            ("3", "payload: expected url, method, headers, body, found no object"),
            ("{}", "payload: url is missing"),
            (r#"{"url":1}"#, "payload: url: expected a string, found 1"),
            (
                r#"{"url":"/x"}"#,
                "payload: url: expected an absolute URL, found \"/x\": \
                 relative URL without a base",
            ),
            (
                r#"{"url":"file:///etc/passwd"}"#,
                "payload: url: scheme \"file\" is refused, expected http or https",
            ),
            (
                r#"{"url":"http://a","method":"CONNECT"}"#,
                "payload: method: \"CONNECT\" is not a method that can be used",
            ),
            (
                r#"{"url":"http://a","headers":{"Content-Length":"1"}}"#,
                "payload: headers.Content-Length: frames the message and cannot be set",
            ),
            (
                r#"{"url":"http://a","headers":{"X":"a\nb"}}"#,
                "payload: headers.X: the value has characters that a header cannot hold",
            ),
            (
                r#"{"url":"http://a","header":{}}"#,
                "payload: unknown field \"header\", expected url, method, headers, body",
            ),
        ] {
            assert_eq!(call(payload).err().as_deref(), Some(expected), "{payload}");
        }
    }

    #[test]
    fn the_file_is_checked_and_secrets_stay_unsaid() {
        let mut config = HttpConfig::new(Setting::plain("http://127.0.0.1/x"));
        config.headers.insert("Authorization".into(), Setting::secret("Bearer S3KR1T\n"));
        let error = Template::new(&config).err().unwrap();
        let expected = "headers.Authorization: the value has characters that a header cannot hold";
        assert_eq!(error.to_string(), expected);
        let config = HttpConfig::new(Setting::secret("S3KR1T"));
        let error = Template::new(&config).err().unwrap().to_string();
        assert!(error.starts_with("url: ") && !error.contains("S3KR1T"), "{error}");
    }

    #[test]
    fn a_redirect_elsewhere_takes_no_secret_along() {
        let mut config = HttpConfig::new(Setting::plain("http://one.test/x"));
        for (name, value) in [
            ("Authorization", Setting::plain("Basic YQ==")),
            ("X-Token", Setting::secret("S3KR1T")),
            ("X-Plain", Setting::plain("1")),
        ] {
            config.headers.insert(name.into(), value);
        }
        let call = Template::new(&config).ok().unwrap().call(&Json::null());
        let to = |url: &str, status| {
            call.clone().redirected(StatusCode::from_u16(status).unwrap(), Url::parse(url).unwrap())
        };
        let away = to("http://two.test/", 307);
        assert_eq!((away.headers.len(), away.reach), (2, Reach::Public));
        assert_eq!((&away.method, away.body.is_some()), (&Method::POST, true));
        let other_port = to("http://one.test:81/", 302);
        assert_eq!((other_port.headers.len(), other_port.reach), (1, Reach::Public));
        assert_eq!((&other_port.method, other_port.body), (&Method::GET, None));
        for same in ["http://one.test/y", "https://one.test/x"] {
            let same = to(same, 308);
            assert_eq!((same.headers.len(), same.reach), (4, Reach::Private));
        }
    }
}
