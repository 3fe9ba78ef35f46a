//! Networks by address: finds the longest prefix that contains an address, without comparing all of them.
//!
//! Of two networks one contains the other, or they are disjoint. They are sorted by first address, larger ones first. The network that
//! contains an address is the last one that begins at or before it, or one of those that contain that one; each has a link to its parent.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
pub use ipnet::IpNet;
use ipnet::Ipv4Net;

/// Values by network; an address has the value of the longest prefix that contains it.
#[derive(Clone, Debug)]
pub struct Networks<V> {
    sorted: Vec<Node<V>>,
}

#[derive(Clone, Debug)]
struct Node<V> {
    network: IpNet,
    /// The smallest network that contains this one.
    parent: Option<usize>,
    value: V,
}

impl<V> Default for Networks<V> {
    fn default() -> Self {
        Networks { sorted: Vec::new() }
    }
}

impl<V: Copy> Networks<V> {
    /// Builds the set of networks whose host bits are 0. Of equal ones the last applies.
    pub fn build(networks: impl IntoIterator<Item = (IpNet, V)>) -> Networks<V> {
        let mut all: Vec<(IpNet, V)> = networks.into_iter().collect();
        all.sort_by_key(|(network, _)| *network);
        let mut built = Networks { sorted: Vec::with_capacity(all.len()) };
        for (network, value) in all {
            let last = built.sorted.len().checked_sub(1);
            let parent = built.upwards(last).find(|(_, node)| node.network.contains(&network));
            let parent = parent.map(|(place, _)| place);
            built.sorted.push(Node { network, parent, value });
        }
        built
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The longest acceptable prefix that contains `address`, with its value.
    pub fn find(&self, address: IpAddr, accept: impl Fn(&V) -> bool) -> Option<(u8, V)> {
        let alone = IpNet::from(address);
        let before = self.sorted.partition_point(|node| node.network <= alone).checked_sub(1);
        let holds = |node: &Node<V>| node.network.contains(&address) && accept(&node.value);
        let (_, node) = self.upwards(before).find(|(_, node)| holds(node))?;
        Some((node.network.prefix_len(), node.value))
    }

    /// A network and those that contain it.
    fn upwards(&self, from: Option<usize>) -> impl Iterator<Item = (usize, &Node<V>)> {
        let node = |place: Option<usize>| place.and_then(|place| Some((place, self.sorted.get(place)?)));
        core::iter::successors(node(from), move |(_, below)| node(below.parent))
    }
}

/// A text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network; expected an address with a prefix, such as 203.0.113.0/24 or 2001:db8::/32")]
pub struct NotANetwork(String);

/// Parses a network and clears its host bits; an address alone is a network of one. IPv4 mapped to IPv6 becomes IPv4.
pub fn parse_network(text: &str) -> Result<IpNet, NotANetwork> {
    let alone = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(alone);
    network.map(|network| unmapped(network).trunc()).ok_or_else(|| NotANetwork(text.into()))
}

fn unmapped(network: IpNet) -> IpNet {
    let IpNet::V6(long) = network else { return network };
    let prefix = long.prefix_len().checked_sub(96);
    let short = long.addr().to_ipv4_mapped().zip(prefix);
    short.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;

    fn build(networks: &[&str]) -> Networks<usize> {
        Networks::build(networks.iter().zip(0..).map(|(text, n)| (parse_network(text).unwrap(), n)))
    }

    #[test]
    fn the_longest_prefix_is_found() {
        let networks =
            build(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.128.0.0/9", "0.0.0.0/0", "2001:db8::/32"]);
        for (address, expected) in [
            ("10.0.0.0", Some((8, 0))),
            ("10.0.255.255", Some((8, 0))),
            ("10.1.0.0", Some((16, 1))),
            ("10.1.2.3", Some((32, 2))),
            ("10.1.2.4", Some((16, 1))),
            ("10.2.0.0", Some((8, 0))),
            ("10.255.255.255", Some((9, 3))),
            ("11.0.0.0", Some((0, 4))),
            ("2001:db8:ffff::1", Some((32, 5))),
            ("2001:db9::", None),
            ("::", None),
        ] {
            assert_eq!(networks.find(address.parse().unwrap(), |_| true), expected, "{address}");
        }
        let address = "10.1.2.3".parse().unwrap();
        assert_eq!(
            networks.find(address, |n| *n != 2),
            Some((16, 1)),
            "the next shorter prefix if the longest is rejected"
        );
        assert_eq!(networks.find(address, |_| false), None);
        assert_eq!(build(&[]).find(address, |_| true), None);
    }

    proptest! {
        #[test]
        fn the_result_equals_that_of_a_search_of_all_networks(
            networks in proptest::collection::vec("(10|11)\\.[0-3]\\.[0-3]\\.[0-3]/([0-9]|[12][0-9]|3[0-2])|2001:[0-3]::[0-3]/[0-9]{1,2}", 0..40),
            addresses in proptest::collection::vec("(10|11)\\.[0-3]\\.[0-3]\\.[0-3]|2001:[0-3]::[0-3]", 1..20),
        ) {
            let texts: Vec<&str> = networks.iter().map(String::as_str).collect();
            let built = build(&texts);
            for address in addresses {
                let address: IpAddr = address.parse().unwrap();
                let all = texts.iter().zip(0_usize..).map(|(text, n)| (parse_network(text).unwrap(), n));
                let holding = all.filter(|(network, n)| network.contains(&address) && n % 3 != 2);
                let expected = holding.max_by_key(|(network, n)| (network.prefix_len(), *n));
                let expected = expected.map(|(network, n)| (network.prefix_len(), n));
                prop_assert_eq!(built.find(address, |n| n % 3 != 2), expected);
            }
        }
    }
}
