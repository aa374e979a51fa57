//! Which addresses a webhook may be sent to: none inside the machine or its networks, unless that is allowed.
//!
//! Called by the http sink's `build` for a URL that holds an address, and by its client for every name, at the moment
//! the name is resolved. Invariant: the client connects only to addresses that this has seen, so a name that resolves
//! to something else a moment later gains nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Resolves names as the machine does, and leaves out every address that is not public.
#[derive(Debug)]
pub(super) struct PublicOnly;

/// A name all of whose addresses are refused.
#[derive(Debug)]
pub(super) struct Refused {
    name: String,
    address: IpAddr,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} resolves to {}, which is no public address; allow_private_addresses = true allows it",
            self.name, self.address
        )
    }
}

impl std::error::Error for Refused {}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let public: Vec<SocketAddr> = found.iter().copied().filter(|a| is_public(a.ip())).collect();
            match (public.is_empty(), found.first()) {
                (true, Some(first)) => Err(Refused { name, address: first.ip() }.into()),
                _ => Ok(Box::new(public.into_iter()) as Addrs),
            }
        })
    }
}

/// Whether an address can belong to somebody else's server on the Internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

#[allow(clippy::unnested_or_patterns, reason = "one network a line")]
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !matches!(
        (a, b, c),
        // This network, private networks, loopback, carrier-grade NAT, link-local (the clouds' metadata among it).
        (0 | 10 | 127, ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments, documentation, benchmarks.
            | (192, 0, 0 | 2)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            // Multicast, reserved, broadcast.
            | (224..=255, ..)
    )
}

#[allow(clippy::many_single_char_names, reason = "the bytes of an address")]
fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match s {
        // Mapped IPv4, and IPv4 behind NAT64 and 6to4: what is meant is the IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            embedded(high, low)
        }
        // Unspecified, loopback, IPv4-compatible; local NAT64; discard; Teredo; documentation.
        [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] | [0x100, 0, 0, 0, ..] | [0x2001, 0 | 0xdb8, ..] => false,
        // Unique local, link-local and site-local, multicast.
        [first, ..] => first & 0xfe00 != 0xfc00 && !(0xfe80..=0xfeff).contains(&first) && first < 0xff00,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_is_refused_in_every_spelling() {
        for address in [
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "169.253.0.1",
            "198.20.0.1",
            "223.255.255.1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "fbff::1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }
}
