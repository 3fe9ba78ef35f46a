//! Clients that are exempt or denied by their address alone, before any rule.
//!
//! Of the networks that contain an address, the one with the longest prefix applies. Live control may name networks
//! too; `resolve` combines both.

use super::request::Request;
use super::request::client_address::{Peer, TRUSTED_PROXIES_MAX, client_address};
use crate::fields::Node;
use crate::fields::{Errors, Path};
use crate::matching::networks::{Networks, parse_network};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use ipnet::IpNet;

/// Most networks of one list.
pub(super) const NETWORKS_MAX: usize = 10_000;
/// Length of the longest notation of a network.
pub(super) const NETWORK_BYTES_MAX: usize = 64;
pub(super) const FIELDS: [&str; 3] = ["trusted_hops", "exempt", "deny"];

/// `client_networks`: networks whose clients are exempt from all rules, and networks whose clients are denied.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// `trusted_hops` (default 0): the number of trusted proxies that append to `x-forwarded-for`, as in
    /// `client_address`.
    trusted_hops: usize,
    networks: Networks<Listed>,
    /// The number of exempt and of denied networks that are listed.
    pub listed: (usize, usize),
}

/// The list that contains a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// `exempt` (default: none): exempt from all rules.
    Allow,
    /// `deny` (default: none): denied.
    Deny,
}

impl Addresses {
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Addresses> {
        let fields = node.object(&FIELDS, errors)?;
        let trusted_hops =
            fields.or("trusted_hops", 0, errors, |node, e| node.integer(0..=TRUSTED_PROXIES_MAX, e));
        let read = |node: Node<'_>, errors: &mut Errors| read_networks(node, 0..=NETWORKS_MAX, errors);
        let allow = fields.or("exempt", Vec::new(), errors, read);
        let deny = fields.or("deny", Vec::new(), errors, read);
        let (allow, deny) = (allow?, deny?);
        reject_contradictions(&node, &allow, &deny, errors)?;
        let counts = (allow.len(), deny.len());
        let listed = |networks: Vec<IpNet>, list| networks.into_iter().map(move |network| (network, list));
        let networks = listed(allow, Listed::Allow).chain(listed(deny, Listed::Deny));
        Some(Addresses {
            trusted_hops: usize::try_from(trusted_hops?).ok()?,
            networks: Networks::build(networks),
            listed: counts,
        })
    }

    /// Whether any network is listed.
    pub(super) fn are_listed(&self) -> bool {
        !self.networks.is_empty()
    }

    /// The client's address, if it has one.
    pub(super) fn client<R: Request + ?Sized>(
        &self,
        request: &R,
        peer: &mut Peer,
        buffer: &mut Vec<u8>,
    ) -> Option<IpAddr> {
        client_address(self.trusted_hops, request, peer, buffer)
    }

    /// Length of the longest prefix that contains an address, and the list it is in.
    pub(super) fn find(&self, address: IpAddr) -> Option<(u8, Listed)> {
        self.networks.find(address, |_| true)
    }
}

/// Reads a list of so many networks.
pub(super) fn read_networks(
    node: Node<'_>,
    count: RangeInclusive<usize>,
    errors: &mut Errors,
) -> Option<Vec<IpNet>> {
    node.list(count, "networks", errors, |node, errors| {
        let text = node.text(NETWORK_BYTES_MAX, errors)?;
        match parse_network(text) {
            Ok(network) => Some(network),
            Err(_) => node.reject(
                errors,
                "is not a network",
                "an address, or one with a prefix, such as \"203.0.113.0/24\" or \"2001:db8::/32\"",
            ),
        }
    })
}

/// Reports networks that are in both lists.
fn reject_contradictions(
    node: &Node<'_>,
    allow: &[IpNet],
    deny: &[IpNet],
    errors: &mut Errors,
) -> Option<()> {
    let allowed: BTreeMap<IpNet, usize> = allow.iter().copied().zip(0..).collect();
    let list = Path::Field(&node.path, "deny");
    let mut sound = Some(());
    for (index, network) in deny.iter().enumerate() {
        if let Some(other) = allowed.get(network) {
            let problem = format!("{network} is also in exempt[{other}]");
            sound = errors.reject(&Path::Index(&list, index), problem, "each network in one list only");
        }
    }
    sound
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use alloc::string::{String, ToString};

    fn read(text: &str) -> Result<Addresses, String> {
        let mut errors = Errors::default();
        let json = Value::parse(text.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let addresses = Addresses::read(Node::root("configuration", &json), &mut errors);
        errors.finish(addresses).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_longest_prefix_of_both_lists_applies() {
        let addresses = read(
            r#"{"exempt": ["10.0.0.0/8", "203.0.113.7"], "deny": ["203.0.113.0/24", "10.6.6.0/24", "2001:db8::/32"]}"#,
        )
        .unwrap();
        for (address, expected) in [
            ("10.1.1.1", Some((8, Listed::Allow))),
            ("10.6.6.1", Some((24, Listed::Deny))),
            ("203.0.113.6", Some((24, Listed::Deny))),
            ("203.0.113.7", Some((32, Listed::Allow))),
            ("2001:db8::1", Some((32, Listed::Deny))),
            ("192.0.2.1", None),
        ] {
            assert_eq!(addresses.find(address.parse().unwrap()), expected, "{address}");
        }
        assert!(addresses.are_listed() && !read("{}").unwrap().are_listed());
    }

    #[test]
    fn errors_name_the_field_and_the_problem() {
        for (text, expected) in [
            (r#"{"exempt": ["10.0.0.0/33"]}"#, "configuration.exempt[0]: \"10.0.0.0/33\" is not a network"),
            (r#"{"deny": ["example.org"]}"#, "configuration.deny[0]: \"example.org\" is not a network"),
            (r#"{"deny": [7]}"#, "configuration.deny[0]: 7 is not a string"),
            (
                r#"{"exempt": ["::1", "10.0.0.1/8"], "deny": ["10.0.0.0/8"]}"#,
                "configuration.deny[0]: 10.0.0.0/8 is also in exempt[1]",
            ),
            (r#"{"trusted_hops": 33}"#, "configuration.trusted_hops: 33 is out of range"),
            (r#"{"block": []}"#, "block: there is no such field"),
        ] {
            let message = read(text).unwrap_err().replace("configuration.", "");
            assert!(message.starts_with(&expected.replace("configuration.", "")), "{message}");
        }
    }
}
