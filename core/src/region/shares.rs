//! How the room for keys is divided: equally among workspaces, then among the grants of a workspace, then among the
//! namespaces of a grant. A part that needs less leaves the rest to the others.
//!
//! Whoever may name namespaces can invent any number of them, so a namespace alone is entitled to no share. A grant is: the
//! namespaces that one name or prefix in an application's credential allows, which the operator wrote. All namespaces
//! without a grant are one part of their workspace. So are all that no rule of a filter can have, and of these again those of
//! limits that callers bring along.

use crate::model::key::{HashKey, fingerprint};
use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// What the namespaces of limits begin with that descriptors of the rate-limit service bring along. Their rest is the caller's.
pub const OVERRIDES: &[u8] = b"rls|override|";

/// The names and prefixes of namespaces in the credentials of applications, by workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(BTreeMap<Box<[u8]>, Patterns>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Patterns {
    names: BTreeSet<Box<[u8]>>,
    prefixes: BTreeSet<Box<[u8]>>,
}

/// The part that a namespace belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    /// No credential has a name or a prefix for it.
    Rest,
    /// No rule of a filter can have it, as a name has neither `|` nor `:`.
    Unnamed,
    /// A caller's descriptor has brought its limit along.
    Override,
    Name(&'a [u8]),
    Prefix(&'a [u8]),
}

impl Grants {
    /// Adds a name, or a prefix that an asterisk follows. An asterisk alone grants everything, which is no part.
    pub fn add(&mut self, workspace: &[u8], pattern: &[u8]) {
        let patterns = self.0.entry(workspace.into()).or_default();
        match pattern.strip_suffix(b"*") {
            None => patterns.names.insert(pattern.into()),
            Some(b"") => false,
            Some(prefix) => patterns.prefixes.insert(prefix.into()),
        };
    }

    /// The name, or else the longest prefix.
    fn part<'a>(&self, workspace: &[u8], namespace: &'a [u8]) -> Part<'a> {
        if let Some(patterns) = self.0.get(workspace) {
            if patterns.names.contains(namespace) {
                return Part::Name(namespace);
            }
            let prefixes = (1..=namespace.len()).rev().filter_map(|length| namespace.get(..length));
            let granted = prefixes.into_iter().find(|prefix| patterns.prefixes.contains(*prefix));
            if let Some(prefix) = granted {
                return Part::Prefix(prefix);
            }
        }
        if namespace.starts_with(OVERRIDES) {
            return Part::Override;
        }
        match namespace.iter().any(|byte| b"|:".contains(byte)) {
            true => Part::Unnamed,
            false => Part::Rest,
        }
    }
}

impl Part<'_> {
    fn bytes(&self) -> (u8, &[u8]) {
        match self {
            Part::Rest => (0, b""),
            Part::Unnamed => (1, b""),
            Part::Name(name) => (2, name),
            Part::Prefix(prefix) => (3, prefix),
            Part::Override => (4, b""),
        }
    }
}

/// Where a key's namespace stands: hashes of its workspace, its grant and itself, each with those before it.
pub(in crate::region) type Lineage = [u32; 3];

/// How many keys each part has.
#[derive(Debug, Default)]
pub(super) struct Shares {
    grants: Grants,
    held: [BTreeMap<u32, usize>; 3],
    /// The lineage of each namespace that has keys. It stays while there are some, also when the grants change.
    lineages: BTreeMap<u32, Lineage>,
}

/// How the part of a stored key compares to that of a new one, where they part ways. In the order in which stored keys are
/// evicted for the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It has more keys, also when the new one is added.
    Richer,
    /// Both are in one namespace.
    Same,
    /// It has as many or fewer.
    Poorer,
}

impl Shares {
    pub(super) fn set_grants(&mut self, grants: Grants) {
        self.grants = grants;
    }

    /// The lineage of a namespace.
    pub(super) fn lineage(&self, workspace: &[u8], namespace: &[u8], secret: HashKey) -> Lineage {
        let hash = |level: u8, (kind, name): (u8, &[u8])| {
            let mut bytes = Vec::from([level, kind]);
            // The length separates the two texts.
            bytes.extend_from_slice(&workspace.len().to_le_bytes());
            bytes.extend_from_slice(workspace);
            bytes.extend_from_slice(name);
            // All bits of the fingerprint are of equal quality.
            fingerprint(&bytes, secret) as u32
        };
        let own = hash(2, (0, namespace));
        if let Some(lineage) = self.lineages.get(&own) {
            return *lineage;
        }
        let part = self.grants.part(workspace, namespace);
        [hash(0, (0, b"")), hash(1, part.bytes()), own]
    }

    pub(super) fn add(&mut self, lineage: Lineage) {
        for (held, part) in self.held.iter_mut().zip(lineage) {
            let held = held.entry(part).or_default();
            *held = held.saturating_add(1);
        }
        self.lineages.entry(lineage[2]).or_insert(lineage);
    }

    pub(super) fn remove(&mut self, lineage: Lineage) {
        for (held, part) in self.held.iter_mut().zip(lineage) {
            if let Entry::Occupied(mut entry) = held.entry(part) {
                *entry.get_mut() = entry.get().saturating_sub(1);
                if *entry.get() == 0 {
                    entry.remove();
                }
            }
        }
        if !self.held[2].contains_key(&lineage[2]) {
            self.lineages.remove(&lineage[2]);
        }
    }

    /// How a stored key's part compares to that of a new one.
    pub(super) fn standing(&self, stored: Lineage, new: Lineage) -> Standing {
        let mut parts = self.held.iter().zip(stored.iter().zip(&new));
        let Some((held, (stored, new))) = parts.find(|(_, (stored, new))| stored != new) else {
            return Standing::Same;
        };
        let [stored, new] = [stored, new].map(|part| held.get(part).copied().unwrap_or(0));
        if stored > new.saturating_add(1) { Standing::Richer } else { Standing::Poorer }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held[2].values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_belongs_to_its_name_or_its_longest_prefix() {
        let mut grants = Grants::default();
        for pattern in ["job-*", "job-a*", "job-ab", "*"] {
            grants.add(b"w", pattern.as_bytes());
        }
        for (namespace, expected) in [
            ("job-ab", Part::Name(b"job-ab")),
            ("job-abc", Part::Prefix(b"job-a")),
            ("job-b", Part::Prefix(b"job-")),
            ("job", Part::Rest),
            ("rls|edge|user|", Part::Unnamed),
            ("rls|override|edge|user", Part::Override),
            ("sha256:x", Part::Unnamed),
        ] {
            assert_eq!(grants.part(b"w", namespace.as_bytes()), expected, "{namespace}");
        }
        assert_eq!(grants.part(b"v", b"job-b"), Part::Rest, "another workspace");
    }

    #[test]
    fn parts_are_compared_where_they_differ_and_leave_nothing_behind() {
        let mut shares = Shares::default();
        let mut grants = Grants::default();
        grants.add(b"w", b"job-*");
        shares.set_grants(grants);
        let lineage = |shares: &Shares, workspace: &[u8], namespace: &[u8]| {
            shares.lineage(workspace, namespace, HashKey(1, 2))
        };
        let [login, one, other, far] =
            [(b"w", &b"login"[..]), (b"w", b"job-1"), (b"w", b"job-2"), (b"v", b"n")]
                .map(|(workspace, namespace)| lineage(&shares, workspace, namespace));
        assert!(login[0] == one[0] && login[1] != one[1] && one[1] == other[1] && far[0] != one[0]);
        for (lineage, keys) in [(login, 3), (one, 2)] {
            (0..keys).for_each(|_| shares.add(lineage));
        }
        assert_eq!(shares.standing(login, other), Standing::Poorer, "the prefix has 2, and would have 3");
        assert_eq!(shares.standing(one, other), Standing::Richer, "2 and none, within the prefix");
        assert_eq!(shares.standing(login, far), Standing::Richer);
        assert_eq!(shares.standing(login, login), Standing::Same);
        for (lineage, keys) in [(login, 3), (one, 2)] {
            (0..keys).for_each(|_| shares.remove(lineage));
        }
        assert!(shares.lineages.is_empty() && shares.held.iter().all(BTreeMap::is_empty));
    }
}
