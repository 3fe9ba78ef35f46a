//! A set of rules: the few of a request's rules that something is true of.

use smallvec::SmallVec;

/// Numbers of rules in ascending order. Up to four need no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet(SmallVec<[u16; 4]>);

impl RuleSet {
    /// The set of one rule.
    pub fn of(rule: u16) -> RuleSet {
        let mut set = RuleSet::default();
        set.insert(rule);
        set
    }

    /// Adds a rule.
    pub fn insert(&mut self, rule: u16) {
        if let Err(place) = self.0.binary_search(&rule) {
            self.0.insert(place, rule);
        }
    }

    /// Adds all rules of another set.
    pub fn extend(&mut self, other: &RuleSet) {
        other.iter().for_each(|rule| self.insert(rule));
    }

    /// Whether a rule is in it.
    pub fn contains(&self, rule: u16) -> bool {
        self.0.contains(&rule)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u16> for RuleSet {
    fn from_iter<I: IntoIterator<Item = u16>>(rules: I) -> RuleSet {
        let mut set = RuleSet::default();
        rules.into_iter().for_each(|rule| set.insert(rule));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn rules_are_in_order_and_once() {
        let mut set: RuleSet = [900, 3, 900, 65_535, 0, 64, 3].into_iter().collect();
        set.extend(&RuleSet::of(5));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 5, 64, 900, 65_535]);
        assert!(set.contains(64) && !set.contains(65) && !set.is_empty());
        assert!(RuleSet::default().is_empty());
    }
}
