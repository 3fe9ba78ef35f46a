//! The client's address as an identifier: which address is used, and how long a prefix of it.
//!
//! An IPv6 client usually owns a /64, which is the default prefix. An IPv4-mapped IPv6 address counts as IPv4.

use crate::fields::Errors;
use crate::fields::Node;
use crate::rules::request::property::PEER_ADDRESS;
use crate::rules::request::{Request, joined_header};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;

/// More trusted proxies in a row than any deployment has.
pub(in crate::rules) const TRUSTED_PROXIES_MAX: u64 = 32;

pub(in crate::rules) const FIELDS: [&str; 3] = ["ipv4_prefix", "ipv6_prefix", "trusted_hops"];
pub(in crate::rules) const IPV4_PREFIXES: RangeInclusive<u64> = 0..=32;
pub(in crate::rules) const IPV6_PREFIXES: RangeInclusive<u64> = 0..=128;

/// `client_address`: the peer's address, or one that trusted proxies have added to `x-forwarded-for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) struct ClientAddress {
    ipv4_prefix: u32,
    ipv6_prefix: u32,
    trusted_hops: usize,
}

impl ClientAddress {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<ClientAddress> {
        let fields = node.object(&FIELDS, errors)?;
        let ipv4_prefix =
            fields.or("ipv4_prefix", 32, errors, |node, errors| node.integer(IPV4_PREFIXES, errors));
        let ipv6_prefix =
            fields.or("ipv6_prefix", 64, errors, |node, errors| node.integer(IPV6_PREFIXES, errors));
        let trusted_hops = fields
            .or("trusted_hops", 0, errors, |node, errors| node.integer(0..=TRUSTED_PROXIES_MAX, errors));
        Some(ClientAddress {
            ipv4_prefix: u32::try_from(ipv4_prefix?).ok()?,
            ipv6_prefix: u32::try_from(ipv6_prefix?).ok()?,
            trusted_hops: usize::try_from(trusted_hops?).ok()?,
        })
    }

    /// Appends the address; nothing if it is unknown (a peer on a Unix socket has none).
    pub fn write<R: Request + ?Sized>(
        &self,
        request: &R,
        peer: &mut Peer,
        buffer: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        if let Some(address) = client_address(self.trusted_hops, request, peer, buffer) {
            self.write_prefix(address, out);
        }
    }

    fn write_prefix(&self, address: IpAddr, out: &mut Vec<u8>) {
        let mut out = Text(out);
        // Writing to memory cannot fail.
        let _ = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(self.ipv4_prefix)).unwrap_or(0);
                let masked = Ipv4Addr::from_bits(address.to_bits() & mask);
                match self.ipv4_prefix {
                    32 => write!(out, "{masked}"),
                    prefix => write!(out, "{masked}/{prefix}"),
                }
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.ipv6_prefix)).unwrap_or(0);
                let masked = Ipv6Addr::from_bits(address.to_bits() & mask);
                match self.ipv6_prefix {
                    128 => write!(out, "{masked}"),
                    prefix => write!(out, "{masked}/{prefix}"),
                }
            }
        };
    }
}

/// The client's address: the one that trusted proxies have added to `x-forwarded-for`, else the peer's.
pub(in crate::rules) fn client_address<R: Request + ?Sized>(
    trusted_hops: usize,
    request: &R,
    peer: &mut Peer,
    buffer: &mut Vec<u8>,
) -> Option<IpAddr> {
    forwarded(trusted_hops, request, buffer).or_else(|| peer.address(request))
}

/// The address that the outermost trusted proxy has added: the n-th from the right in all lines together.
fn forwarded<R: Request + ?Sized>(trusted_hops: usize, request: &R, buffer: &mut Vec<u8>) -> Option<IpAddr> {
    let from_right = trusted_hops.checked_sub(1)?;
    let hops = joined_header(request, b"x-forwarded-for", buffer)?;
    parse_address(hops.rsplit(|byte| *byte == b',').nth(from_right)?)
}

/// The peer's address, read at most once for each request.
#[derive(Debug, Default)]
pub(in crate::rules) struct Peer {
    ready: bool,
    address: Option<IpAddr>,
    text: Vec<u8>,
}

impl Peer {
    pub fn reset(&mut self) {
        self.ready = false;
    }

    fn address<R: Request + ?Sized>(&mut self, request: &R) -> Option<IpAddr> {
        if !self.ready {
            self.ready = true;
            self.text.clear();
            request.property(PEER_ADDRESS, &mut self.text);
            self.address = parse_address(&self.text);
        }
        self.address
    }
}

/// `1.2.3.4`, `1.2.3.4:567`, `::1`, `[::1]` or `[::1]:80`.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => text.parse::<SocketAddr>().ok()?.ip(),
    };
    Some(address.to_canonical())
}

struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::TestRequest;
    use alloc::string::String;

    fn check(prefixes: (u32, u32), trusted_hops: usize, peer: &str, forwarded: &[&str], expected: &str) {
        let part = ClientAddress { ipv4_prefix: prefixes.0, ipv6_prefix: prefixes.1, trusted_hops };
        let mut request = TestRequest::default().peer(peer);
        for line in forwarded {
            request = request.header("x-forwarded-for", line);
        }
        let mut out = Vec::new();
        part.write(&request, &mut Peer::default(), &mut Vec::new(), &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{part:?} {peer} {forwarded:?}");
    }

    #[test]
    fn the_peer_and_its_prefix() {
        for (prefixes, peer, expected) in [
            ((32, 64), "1.2.3.4:567", "1.2.3.4"),
            ((32, 64), "1.2.3.4", "1.2.3.4"),
            ((24, 64), "1.2.3.4:567", "1.2.3.0/24"),
            ((0, 64), "1.2.3.4:567", "0.0.0.0/0"),
            ((32, 64), "[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
            ((32, 64), "[2001:DB8:0:0:1::]:80", "2001:db8::/64"),
            ((32, 128), "[::1]:80", "::1"),
            ((32, 0), "[::1]:80", "::/0"),
            ((32, 64), "[::ffff:1.2.3.4]:80", "1.2.3.4"),
            ((16, 64), "::ffff:1.2.3.4", "1.2.0.0/16"),
            ((32, 64), "/var/run/x.sock", ""),
            ((32, 64), "", ""),
            ((32, 64), "1.2.3.4.5:6", ""),
        ] {
            check(prefixes, 0, peer, &["9.9.9.9"], expected);
        }
    }

    #[test]
    fn the_address_added_by_trusted_hops() {
        const PEER: &str = "10.0.0.1:1";
        for (trusted, lines, expected) in [
            (0, &["7.7.7.7"][..], "10.0.0.1"),
            (1, &["7.7.7.7"], "7.7.7.7"),
            (1, &["6.6.6.6, 7.7.7.7"], "7.7.7.7"),
            (2, &["6.6.6.6, 7.7.7.7"], "6.6.6.6"),
            (2, &["6.6.6.6", "7.7.7.7"], "6.6.6.6"),
            (3, &["5.5.5.5,6.6.6.6", "7.7.7.7"], "5.5.5.5"),
            (3, &["6.6.6.6, 7.7.7.7"], "10.0.0.1"),
            (1, &[], "10.0.0.1"),
            (1, &[""], "10.0.0.1"),
            (1, &["6.6.6.6, unknown"], "10.0.0.1"),
            (1, &["6.6.6.6,"], "10.0.0.1"),
            (1, &["7.7.7.7:8080"], "7.7.7.7"),
            (1, &["[2001:db8::1]:8080"], "2001:db8::/64"),
            (1, &["[2001:db8::1]"], "2001:db8::/64"),
            (1, &["2001:db8::1"], "2001:db8::/64"),
            (1, &["::ffff:7.7.7.7"], "7.7.7.7"),
        ] {
            check((32, 64), trusted, PEER, lines, expected);
        }
    }
}
