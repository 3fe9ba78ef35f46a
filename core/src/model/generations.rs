//! A map of bounded size that drops what was not inserted lately: two generations, of which the older one is dropped when
//! the younger one is full.

use alloc::collections::BTreeMap;

/// A map of bounded size: values that were not inserted lately are dropped.
#[derive(Clone, Debug)]
pub struct Generations<K, V> {
    young: BTreeMap<K, V>,
    old: BTreeMap<K, V>,
    max: usize,
}

impl<K: Ord, V> Generations<K, V> {
    /// With at most `max` entries in each generation.
    pub fn new(max: usize) -> Generations<K, V> {
        Generations { young: BTreeMap::new(), old: BTreeMap::new(), max }
    }

    /// The value of a key, if it is kept.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Inserts or replaces a value.
    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.max && !self.young.contains_key(&key) {
            self.old = core::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_was_inserted_lately_stays() {
        let mut kept = Generations::new(3);
        for number in 0..20 {
            kept.insert(number, number);
            kept.insert(100, number);
            assert!(kept.iter().count() <= 6);
        }
        assert_eq!((kept.get(&100), kept.get(&19), kept.get(&0)), (Some(&19), Some(&19), None));
        let mut keys: Vec<_> = kept.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        let all = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), all, "no key is there twice");
        kept.remove(&100);
        assert_eq!(kept.get(&100), None);
    }
}
