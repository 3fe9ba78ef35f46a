//! Values by identifier. An exact identifier precedes any pattern. Of several patterns the one with most literal characters applies; of
//! equal ones the first that is listed. Patterns are implemented by `glob`.

use super::glob::{self, GlobSet, Pattern};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasherDefault;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// A fixed hash key is safe here: clients only cause lookups and insert nothing, so that the longest chain is in the
/// operator's own list.
type ExactMap<V> = HashMap<Box<[u8]>, V, BuildHasherDefault<SipHasher13>>;

/// Values by exact identifiers and by patterns.
#[derive(Clone, Debug)]
pub(crate) struct PatternMap<V> {
    exact: ExactMap<V>,
    exact_bytes_max: usize,
    globs: Option<GlobSet<V>>,
}

impl<V> Default for PatternMap<V> {
    fn default() -> Self {
        PatternMap { exact: ExactMap::default(), exact_bytes_max: 0, globs: None }
    }
}

impl<V: Copy> PatternMap<V> {
    /// The map of these entries; `None` if their patterns are too large in total.
    pub fn build(entries: Vec<(Pattern, V)>) -> Option<PatternMap<V>> {
        let mut map = PatternMap::default();
        let mut globs = Vec::new();
        for (pattern, value) in entries {
            match pattern {
                Pattern::Exact(identifier) => {
                    map.exact_bytes_max = map.exact_bytes_max.max(identifier.len());
                    map.exact.entry(identifier).or_insert(value);
                }
                Pattern::Glob(glob) => globs.push((glob, value)),
            }
        }
        if !globs.is_empty() {
            map.globs = Some(GlobSet::build(globs)?);
        }
        Some(map)
    }

    /// The value of a raw identifier.
    pub fn find(&self, raw: &[u8], scratch: &mut glob::Scratch) -> Option<V> {
        if raw.len() <= self.exact_bytes_max
            && let Some(value) = self.exact.get(raw)
        {
            return Some(*value);
        }
        self.globs.as_ref()?.find(raw, |_| true, scratch)
    }
}
