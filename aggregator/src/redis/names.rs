//! Names of keys in Redis: readable, unambiguous, and reversible.
//!
//! A cell is `weir:eu:{workspace/namespace/identifier/60000/0/1}:29384812`: prefix, region, the key's parts, the
//! sequence. Every byte of a text outside `A-Z a-z 0-9 _ . @ = + ~ -` is written as `%XX`. No text can therefore
//! contain a separator, and two different keys never have the same name. The braces are Redis Cluster's hash tag: all
//! cells of a key are in one slot, and therefore on one server.

use super::slots;
use crate::net::percent::decode;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::fmt::Write;
use weir_core::model::key::{HashKey, Key, KeyParts, fingerprint};
pub use weir_core::replication::regional::hot::HOT_SHARDS;

/// Number of markers in a cluster: enough for one marker on each of 64 equal shards.
const CLUSTER_MARKERS: u16 = 64;
/// Longest prefix or region, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// What is written as `%XX`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'_')
    .remove(b'.')
    .remove(b'@')
    .remove(b'=')
    .remove(b'+')
    .remove(b'~')
    .remove(b'-');

/// The names of one region.
#[derive(Debug)]
pub(super) struct Names {
    /// `weir:eu:`.
    root: String,
}

impl Names {
    pub(super) fn new(prefix: &str, region: &str) -> Names {
        let mut root = String::new();
        for text in [prefix, region] {
            escape(text.as_bytes(), &mut root);
            root.push(':');
        }
        Names { root }
    }

    pub(super) fn cell(&self, key: &Key, sequence: u64) -> String {
        let mut name = self.root.clone();
        name.push('{');
        write_key(&key.parts(), &mut name);
        add(&mut name, format_args!("}}:{sequence}"));
        name
    }

    /// The earlier cells that the window touches, newest first. If there is no earlier cell, the list has a name under
    /// which nothing is ever stored.
    pub(super) fn cells_before(&self, key: &Key, sequence: u64) -> Vec<String> {
        let before = (1..=u64::from(key.parts().resolution)).map(|back| match sequence.checked_sub(back) {
            Some(before) => self.cell(key, before),
            None => format!("{}:none", self.cell(key, 0)),
        });
        before.collect()
    }

    /// The sliding log of a key. A cell has a number in place of `log`.
    pub(super) fn log(&self, key: &Key) -> String {
        let mut name = self.root.clone();
        name.push('{');
        write_key(&key.parts(), &mut name);
        name.push_str("}:log");
        name
    }

    pub(super) fn hot(&self, shard: usize) -> String {
        format!("{}hot:{{{shard}}}", self.root)
    }

    pub(super) fn marker(&self, tag: &str) -> String {
        format!("{}incarnation:{{{tag}}}", self.root)
    }

    /// The nodes, the aggregators and the region's time: in one slot, because one script writes them.
    pub(super) fn nodes(&self) -> [String; 3] {
        ["", ":aggregators", ":time"].map(|part| format!("{}{{nodes}}{part}", self.root))
    }

    pub(super) fn status(&self) -> String {
        format!("{}{{status}}", self.root)
    }

    pub(super) fn channel(&self) -> String {
        format!("{}changes", self.root)
    }
}

/// Hash tags of the markers: one for a single server, spread over the slots for a cluster.
pub(super) fn marker_tags(cluster: bool) -> Vec<String> {
    if !cluster {
        return vec!["0".to_owned()];
    }
    (0..CLUSTER_MARKERS).map(|part| slots::tag_in(part, CLUSTER_MARKERS)).collect()
}

/// The shard of the hot index for `key`, the same in every aggregator.
pub fn hot_shard(key: &Key) -> usize {
    let print = fingerprint(key.as_bytes(), HashKey(0, 0)) % HOT_SHARDS as u64;
    usize::try_from(print).unwrap_or(0)
}

/// A cell as a member of the hot index: its name without root and braces.
pub(super) fn member(key: &Key, sequence: u64) -> String {
    let mut name = String::new();
    write_key(&key.parts(), &mut name);
    add(&mut name, format_args!(":{sequence}"));
    name
}

/// The cell of a [`member`]; `None` if no aggregator wrote it.
pub(super) fn parse_member(bytes: &[u8]) -> Option<(Key, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (parts, sequence) = text.rsplit_once(':')?;
    let mut parts = parts.split('/');
    let mut texts = [const { Vec::new() }; 3];
    for text in &mut texts {
        *text = decode(parts.next()?)?;
    }
    let [workspace, namespace, identifier] = &texts;
    let key = Key::new(&KeyParts {
        workspace,
        namespace,
        identifier,
        duration_ms: parts.next()?.parse().ok()?,
        epoch: parts.next()?.parse().ok()?,
        resolution: parts.next()?.parse().ok()?,
    });
    if parts.next().is_some() {
        return None;
    }
    Some((key.ok()?, sequence.parse().ok()?))
}

fn write_key(key: &KeyParts<'_>, out: &mut String) {
    for text in [key.workspace, key.namespace, key.identifier] {
        escape(text, out);
        out.push('/');
    }
    add(out, format_args!("{}/{}/{}", key.duration_ms, key.epoch, key.resolution));
}

fn escape(text: &[u8], out: &mut String) {
    out.extend(percent_encode(text, ESCAPED));
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;
    use weir_core::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS};

    /// Longest name of a cell, in bytes: every text has its maximum length, and every byte is escaped.
    const MAX_CELL_NAME_BYTES: usize =
        2 * (3 * MAX_NAME_BYTES + 1) + 2 + 3 * (3 * MAX_TEXT_BYTES + 1) + (11 + 1 + 10 + 1 + 2) + 1 + 20;

    fn key(texts: &[Vec<u8>; 3], duration_ms: u64, epoch: u32, resolution: u16) -> Key {
        let [workspace, namespace, identifier] = texts;
        Key::new(&KeyParts { workspace, namespace, identifier, duration_ms, epoch, resolution }).unwrap()
    }

    /// A few different bytes, separators among them, make near-collisions likely.
    fn text(random: &mut StdRng) -> Vec<u8> {
        const TRAPS: &[u8] = b"a/%{}:2F0 \0\xff";
        let longest = if random.random() { 4 } else { MAX_TEXT_BYTES };
        let length = random.random_range(0..=longest);
        (0..length)
            .map(
                |_| {
                    if random.random() { TRAPS[random.random_range(0..TRAPS.len())] } else { random.random() }
                },
            )
            .collect()
    }

    #[test]
    fn names_are_readable() {
        let key = key(&[b"default".to_vec(), b"login".to_vec(), b"al/ice".to_vec()], 60_000, 0, 1);
        let name = Names::new("weir", "eu").cell(&key, 29_384_812);
        assert_eq!(name, "weir:eu:{default/login/al%2Fice/60000/0/1}:29384812");
        let fine = self::key(&[b"default".to_vec(), b"login".to_vec(), b"x".to_vec()], 60_000, 0, 2);
        let before = ["weir:eu:{default/login/x/60000/0/2}:6", "weir:eu:{default/login/x/60000/0/2}:5"];
        assert_eq!(Names::new("weir", "eu").cells_before(&fine, 7), before);
        assert_eq!(Names::new("weir", "eu").log(&key), "weir:eu:{default/login/al%2Fice/60000/0/1}:log");
    }

    #[test]
    fn names_are_injective_and_reversible_and_a_key_has_one_slot() {
        let mut random = StdRng::seed_from_u64(7);
        let names = Names::new("we{ir", "e:u");
        let mut seen = BTreeMap::new();
        for _ in 0..20_000 {
            let texts = [text(&mut random), text(&mut random), text(&mut random)];
            let key =
                key(&texts, random.random_range(MIN_DURATION_MS..=MAX_DURATION_MS), random.next_u32(), 1);
            let sequence = if random.random() { random.next_u64() } else { random.random_range(0..3) };
            assert_eq!(parse_member(member(&key, sequence).as_bytes()), Some((key.clone(), sequence)));
            let name = names.cell(&key, sequence);
            assert!(name.len() <= MAX_CELL_NAME_BYTES);
            let next = names.cell(&key, sequence.wrapping_add(1));
            assert_eq!(slots::slot_of(name.as_bytes()), slots::slot_of(next.as_bytes()));
            let first = seen.entry(name).or_insert_with(|| (key.clone(), sequence)).clone();
            assert_eq!(first, (key, sequence));
        }
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let cells =
            [["a/b", "c", ""], ["a", "b/c", ""], ["a", "b", "c"], ["a%2Fb", "c", ""], ["", "a/b", "c"]];
        let names: Vec<_> = cells
            .iter()
            .map(|texts| member(&key(&texts.map(|text| text.as_bytes().to_vec()), 1_000, 0, 1), 0))
            .collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[at + 1..].contains(name), "{name}");
        }
    }

    #[test]
    fn the_longest_name_is_as_long_as_stated() {
        let texts = [const { [0xFF; MAX_TEXT_BYTES] }; 3].map(|text| text.to_vec());
        // The longest duration in digits that the finest resolution divides.
        let key = key(&texts, MAX_DURATION_MS, u32::MAX, 10);
        let long = "\u{ff}".repeat(MAX_NAME_BYTES / 2);
        assert_eq!(Names::new(&long, &long).cell(&key, u64::MAX).len(), MAX_CELL_NAME_BYTES);
    }

    #[test]
    fn foreign_members_are_no_cells() {
        for member in [
            "",
            ":",
            "a:1",
            "a/b/c/60000/0/1:x",
            "a/b/c/60000/0/1/2:3",
            "a/b/%G0/60000/0/1:3",
            "a/b/c/1/0/1:3",
        ] {
            assert_eq!(parse_member(member.as_bytes()), None, "{member}");
        }
        assert_eq!(parse_member(b"\xff"), None);
    }
}
