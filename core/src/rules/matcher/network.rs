//! The condition on the network of the client.

use crate::fields::{Errors, Node};
use crate::matching::networks::Networks;
use crate::rules::addresses::read_networks;
use crate::rules::request::Request;
use crate::rules::request::client_address::{Peer, TRUSTED_PROXIES_MAX, client_address};
use alloc::vec::Vec;

pub(in crate::rules) const FIELDS: [&str; 3] = ["in", "not_in", "trusted_hops"];
/// The condition has exactly one of these lists.
pub(in crate::rules) const KINDS: [&str; 2] = ["in", "not_in"];
/// Most networks of one condition.
pub(in crate::rules) const NETWORKS_MAX: usize = 1_000;

/// Whether the client's address is in one of some networks, or in none.
#[derive(Clone, Debug)]
pub(super) struct NetworkCondition {
    networks: Networks<()>,
    is_in: bool,
    trusted_hops: usize,
}

impl NetworkCondition {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<NetworkCondition> {
        let fields = node.object(&FIELDS, errors)?;
        let kind = fields.exactly_one(&KINDS, errors);
        let networks = kind.and_then(|kind| read_networks(fields.get(kind)?, 1..=NETWORKS_MAX, errors));
        let trusted_hops =
            fields.or("trusted_hops", 0, errors, |node, e| node.integer(0..=TRUSTED_PROXIES_MAX, e));
        Some(NetworkCondition {
            networks: Networks::build(networks?.into_iter().map(|network| (network, ()))),
            is_in: kind? == "in",
            trusted_hops: usize::try_from(trusted_hops?).ok()?,
        })
    }

    /// A client without an address is in no network.
    pub fn matches<R: Request + ?Sized>(&self, request: &R, peer: &mut Peer, buffer: &mut Vec<u8>) -> bool {
        let address = client_address(self.trusted_hops, request, peer, buffer);
        let is_in = address.is_some_and(|address| self.networks.find(address, |()| true).is_some());
        is_in == self.is_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::testing::TestRequest;
    use alloc::string::{String, ToString};

    fn read(json: &str) -> Result<NetworkCondition, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let condition = NetworkCondition::read(Node::root("client_network", &json), &mut errors);
        errors.finish(condition).map_err(|errors| errors.to_string())
    }

    #[test]
    fn clients_by_their_network() {
        let networks = r#"["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"]"#;
        let inside = read(&alloc::format!(r#"{{"in": {networks}}}"#)).unwrap();
        let outside = read(&alloc::format!(r#"{{"not_in": {networks}}}"#)).unwrap();
        for (peer, is_in) in [
            ("10.1.2.3:4", true),
            ("[::ffff:10.1.2.3]:4", true),
            ("[2001:db8::1]:4", true),
            ("192.0.2.7:4", true),
            ("192.0.2.8:4", false),
            ("[::1]:4", false),
            ("", false),
        ] {
            let request = TestRequest::get("/").peer(peer);
            let matches =
                |one: &NetworkCondition| one.matches(&request, &mut Peer::default(), &mut Vec::new());
            assert_eq!([matches(&inside), matches(&outside)], [is_in, !is_in], "{peer}");
        }
        let behind = read(r#"{"in": ["10.0.0.0/8"], "trusted_hops": 2}"#).unwrap();
        let forwarded =
            |lines: &str| TestRequest::get("/").peer("10.9.9.9:1").header("x-forwarded-for", lines);
        let matches = |lines: &str| behind.matches(&forwarded(lines), &mut Peer::default(), &mut Vec::new());
        assert_eq!(
            [matches("10.1.1.1, 203.0.113.1, 10.2.2.2"), matches("10.1.1.1, 10.2.2.2")],
            [false, true]
        );
    }

    #[test]
    fn errors() {
        for (json, problem) in [
            (r#"{}"#, "none of in or not_in is given"),
            (r#"{"in": ["10.0.0.0/8"], "not_in": ["::/0"]}"#, "both in and not_in"),
            (r#"{"in": []}"#, "it has 0 networks"),
            (r#"{"in": ["10.0.0.0/33"]}"#, "in[0]"),
            (r#"{"in": ["10.0.0.0/8"], "trusted_hops": 33}"#, "trusted_hops"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
