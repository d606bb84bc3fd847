//! Signatures of messages. A signature is made for each message: the time in it is checked.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    // HMAC takes a key of any length, so this has no second outcome.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// `sign` of DingTalk: the secret is the key, time (milliseconds) and secret are signed.
pub fn dingtalk(secret: &str, millis: i64) -> String {
    base64(&hmac(secret.as_bytes(), format!("{millis}\n{secret}").as_bytes()))
}

/// `sign` of Feishu: time (seconds) and secret are the key, nothing is signed.
pub fn feishu(secret: &str, seconds: i64) -> String {
    base64(&hmac(format!("{seconds}\n{secret}").as_bytes(), b""))
}

/// `X-Matins-Signature` of webhooks: time (seconds), a dot and the body are signed.
pub fn webhook(secret: &str, seconds: i64, body: &[u8]) -> String {
    use std::fmt::Write as _;
    let message = [format!("{seconds}.").as_bytes(), body].concat();
    hmac(secret.as_bytes(), &message).iter().fold("sha256=".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A query value, encoded once: everything that is not unreserved.
pub fn query_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dingtalk_signs_time_and_secret_with_the_secret() {
        let sign = dingtalk("SECmatins0005", 1_700_000_000_000);
        assert_eq!(sign, "/dcdI/gq9WasmD+jHgPpV9DzdXtF1PwFRtTqRFD3a68=");
        assert_eq!(query_encoded(&sign), "%2FdcdI%2Fgq9WasmD%2BjHgPpV9DzdXtF1PwFRtTqRFD3a68%3D");
        let sign = dingtalk("SECmatins-test-000", 1_767_225_600_000);
        assert_eq!(sign, "5SpiVASeOItUbY9n8euUPIvEaH3d6tsqxjOnpjL86vQ=");
    }

    #[test]
    fn feishu_signs_nothing_with_time_and_secret() {
        let sign = feishu("matins-test-000", 1_767_225_600);
        assert_eq!(sign, "460YZOw2X1oHrYmhAn/BPB5TJVD7VFw/3sABsEVqtaI=");
    }

    /// Case 2 of RFC 4231, with the time and the dot as the beginning of the message.
    #[test]
    fn webhooks_are_signed_with_plain_hmac_sha256() {
        let mac = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(mac[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        let sign = webhook("Jefe", 7, b"{}");
        assert_eq!(sign.len(), 7 + 64);
        let first = format!("sha256={:02x}", hmac(b"Jefe", b"7.{}")[0]);
        assert!(sign.starts_with(&first), "{sign}");
    }
}
