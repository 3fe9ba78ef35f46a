//! A map of bounded size that drops what was not inserted lately: two generations, of which the older one is dropped when
//! the younger one is full.

use std::collections::HashMap;
use std::hash::Hash;

pub(super) struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    max: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    /// With at most `max` entries in each generation.
    pub(super) fn new(max: usize) -> Generations<K, V> {
        Generations { young: HashMap::new(), old: HashMap::new(), max }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.max && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
