//! Where a call may go.
//!
//! Judged are addresses, not names or spellings: literal hosts after the URL parser has reduced
//! every spelling to one, names after resolution, and each again at every redirect. An IPv6
//! address that carries an IPv4 address in it is judged as both.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;

use super::super::{AddressPolicy, Cidr};
use super::Reach;

/// Why a call does not go where it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    Scheme(String),
    NoHost,
    /// Link-local, or where clouds answer with credentials.
    Metadata(String),
    NotPublic(IpAddr),
}

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(scheme) => {
                write!(f, "scheme {scheme:?} is refused, expected http or https")
            }
            Self::NoHost => f.write_str("has no host"),
            Self::Metadata(what) => {
                write!(f, "{what} is refused: link-local and metadata addresses are never called")
            }
            Self::NotPublic(address) => {
                write!(f, "{address} is refused: not a public address, and not in http.allow")
            }
        }
    }
}

/// Names that lead to metadata services wherever they resolve to.
const METADATA_NAMES: [&str; 2] = ["metadata.google.internal", "metadata.goog"];

/// What can be said before anything is resolved.
pub(super) fn judge_url(url: &Url, reach: Reach, policy: &AddressPolicy) -> Result<(), Refused> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Refused::Scheme(url.scheme().to_owned()));
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(Refused::NoHost)?;
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(address) => judge(address, reach, policy),
        Err(_) => judge_name(host),
    }
}

pub(super) fn judge_name(name: &str) -> Result<(), Refused> {
    let plain = name.trim_end_matches('.').to_ascii_lowercase();
    if METADATA_NAMES.iter().any(|known| plain == *known) {
        return Err(Refused::Metadata(plain));
    }
    Ok(())
}

pub(super) fn judge(address: IpAddr, reach: Reach, policy: &AddressPolicy) -> Result<(), Refused> {
    let carried = match address {
        IpAddr::V6(v6) => carried(v6).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    let all = || [Some(address), carried].into_iter().flatten();
    if all().any(is_metadata) {
        return Err(Refused::Metadata(address.to_string()));
    }
    let is_allowed = |address| policy.allow.iter().any(|range| range.contains(address));
    // What carries a private address is private, and an allowed range holds in either spelling.
    let is_fine = reach == Reach::Private || all().all(is_public) || all().any(is_allowed);
    if is_fine { Ok(()) } else { Err(Refused::NotPublic(address)) }
}

impl Cidr {
    pub fn contains(&self, address: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        match (self.addr, address) {
            (IpAddr::V4(range), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
                (u32::from(range) ^ u32::from(address)) & mask == 0
            }
            (IpAddr::V6(range), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
                (u128::from(range) ^ u128::from(address)) & mask == 0
            }
            _ => false,
        }
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Cidr {
    Cidr { addr: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(a: u16, b: u16, c: u16, h: u16, prefix: u8) -> Cidr {
    Cidr { addr: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, h)), prefix }
}

/// Link-local ranges, and the fixed addresses of AWS, Alibaba, Azure, Oracle and Google.
const METADATA: [Cidr; 7] = [
    v4(169, 254, 0, 0, 16),
    v4(100, 100, 100, 200, 32),
    v4(168, 63, 129, 16, 32),
    v4(192, 0, 0, 192, 32),
    v6(0xfe80, 0, 0, 0, 10),
    v6(0xfd00, 0x0ec2, 0, 0, 32),
    v6(0xfd20, 0x00ce, 0, 0x0254, 128),
];

/// IPv4 outside the public Internet (IANA special-purpose registry).
const NOT_PUBLIC_V4: [Cidr; 13] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    // Multicast, reserved, broadcast.
    v4(224, 0, 0, 0, 3),
];

/// IPv6 that is public although it lies outside `2000::/3`, judged by the address it carries.
const TRANSLATED: Cidr = v6(0x0064, 0xff9b, 0, 0, 96);
const GLOBAL: Cidr = v6(0x2000, 0, 0, 0, 3);
const NOT_PUBLIC_V6: [Cidr; 2] = [
    // Protocol assignments, Teredo among them, and documentation.
    v6(0x2001, 0, 0, 0, 23),
    v6(0x2001, 0x0db8, 0, 0, 32),
];

fn is_metadata(address: IpAddr) -> bool {
    METADATA.iter().any(|range| range.contains(address))
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => !NOT_PUBLIC_V4.iter().any(|range| range.contains(address)),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => true,
        IpAddr::V6(_) if TRANSLATED.contains(address) => true,
        IpAddr::V6(_) => {
            GLOBAL.contains(address) && !NOT_PUBLIC_V6.iter().any(|range| range.contains(address))
        }
    }
}

/// The IPv4 address inside a mapped, compatible, translated, 6to4 or Teredo address.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            Some(v4(high, low))
        }
        [0x64, 0xff9b, .., high, low] | [0x2002, high, low, ..] => Some(v4(high, low)),
        [0x2001, 0, .., high, low] => Some(v4(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(url: &str, reach: Reach, allow: &[Cidr]) -> Result<(), Refused> {
        let policy = AddressPolicy { allow: allow.to_vec(), redirects: 0 };
        judge_url(&Url::parse(url).unwrap(), reach, &policy)
    }

    #[test]
    fn metadata_is_refused_in_every_spelling_to_everybody() {
        let everything = [v4(0, 0, 0, 0, 0), v6(0, 0, 0, 0, 0)];
        for url in [
            "http://169.254.169.254/latest",
            "http://2852039166/",
            "http://0xA9FEA9FE/",
            "http://0xa9.0xfe.0xa9.0xfe/",
            "http://0251.0376.0251.0376/",
            "http://169.254.43518/",
            "http://169.254.169.254./",
            "http://a@169.254.169.254",
            "http://example.com@169.254.169.254/",
            "http://example.com%40169.254.169.254:80@169.254.169.254/",
            "http://[::ffff:169.254.169.254]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[::169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[64:ff9b:1::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[2001:0:1:2:3:4:5601:5601]/",
            "http://[fe80::1]/",
            "http://[febf::1]/",
            "http://[fd00:ec2::254]/",
            "http://[fd20:ce::254]/",
            "http://100.100.100.200/",
            "http://168.63.129.16/",
            "http://metadata.google.internal/",
            "http://METADATA.google.internal./computeMetadata/v1/",
            "http://\u{ff11}\u{ff16}\u{ff19}.254.169.254/",
        ] {
            for reach in [Reach::Private, Reach::Public] {
                let verdict = verdict(url, reach, &everything);
                assert!(
                    matches!(verdict, Err(Refused::Metadata(_))),
                    "{url} {reach:?} {verdict:?}"
                );
            }
        }
    }

    #[test]
    fn private_addresses_are_for_the_operator() {
        for url in [
            "http://127.0.0.1:8080/",
            "http://127.1/",
            "http://2130706433/",
            "http://0/",
            "http://10.1.2.3/",
            "http://172.16.0.1/",
            "http://172.31.255.255/",
            "http://192.168.1.1/",
            "http://100.64.0.1/",
            "http://198.18.0.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[fc00::1]/",
            "http://[fd12:3456::1]/",
            "http://[ff02::1]/",
            "http://[64:ff9b::10.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://[2001:db8::1]/",
        ] {
            assert_eq!(verdict(url, Reach::Private, &[]), Ok(()), "{url}");
            let refused = verdict(url, Reach::Public, &[]);
            assert!(matches!(refused, Err(Refused::NotPublic(_))), "{url} {refused:?}");
        }
    }

    #[test]
    fn public_addresses_are_for_everybody() {
        for url in [
            "http://93.184.216.34/",
            "https://172.32.0.1/",
            "http://100.128.0.1/",
            "http://[2606:4700::1111]/",
            "http://[::ffff:93.184.216.34]/",
            "http://[64:ff9b::93.184.216.34]/",
            "http://example.com/",
        ] {
            assert_eq!(verdict(url, Reach::Public, &[]), Ok(()), "{url}");
        }
    }

    #[test]
    fn an_allowed_range_opens_what_lies_in_it() {
        let ten = [v4(10, 0, 0, 0, 8)];
        assert_eq!(verdict("http://10.9.9.9/", Reach::Public, &ten), Ok(()));
        assert_eq!(verdict("http://[::ffff:10.9.9.9]/", Reach::Public, &ten), Ok(()));
        assert!(verdict("http://11.0.0.1/", Reach::Public, &[v4(10, 0, 0, 0, 7)]).is_ok());
        assert!(verdict("http://192.168.0.1/", Reach::Public, &ten).is_err());
        assert!(verdict("http://[::1]/", Reach::Public, &[v6(0, 0, 0, 1, 128)]).is_ok());
    }

    #[test]
    fn only_http_is_spoken() {
        for url in ["file:///etc/passwd", "gopher://x/", "ftp://example.com/", "data:text/plain,x"]
        {
            let refused = verdict(url, Reach::Private, &[]);
            assert!(matches!(refused, Err(Refused::Scheme(_))), "{url} {refused:?}");
        }
    }
}
