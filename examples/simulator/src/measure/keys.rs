//! The keys of a run. A key is created at its first use and dropped when nothing of it counts any more.

use super::key::Key;
use crate::plan::Rule;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

/// Keys that each use examines for removal: twice as many as it can add.
const KEYS_A_USE: usize = 2;
/// A key is kept this much longer than its windows, because requests that waited are decided late.
const GRACE_US: u64 = 5_000_000;

/// A hasher without a random seed. Its order has no effect.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// All keys of a run.
#[derive(Debug)]
pub struct Keys {
    rules: Vec<OfRule>,
}

#[derive(Debug)]
struct OfRule {
    rule: Rule,
    keys: HashMap<u64, Key, Hasher>,
    /// Sum of the absolute balances of dropped keys.
    balances: u64,
    /// When to examine each key for removal, and its identifier; each key has one entry.
    leaving: VecDeque<(u64, u64)>,
}

impl Keys {
    /// Creates an empty set of keys.
    pub fn new(rules: &[Rule]) -> Keys {
        let of_rule = |rule: &Rule| OfRule {
            rule: *rule,
            keys: HashMap::default(),
            balances: 0,
            leaving: VecDeque::new(),
        };
        Keys { rules: rules.iter().map(of_rule).collect() }
    }

    /// The key of one identifier under the rule with this number, which must exist.
    pub fn get(&mut self, rule: usize, identifier: u64, at_us: u64) -> &mut Key {
        let of_rule = &mut self.rules[rule];
        of_rule.evict(at_us);
        let OfRule { rule, keys, leaving, .. } = of_rule;
        let key = keys.entry(identifier).or_insert_with(|| {
            leaving.push_back((at_us.saturating_add(kept_us(rule)), identifier));
            Key::new(rule)
        });
        key.last_used_us = key.last_used_us.max(at_us);
        key
    }

    /// The key of one identifier, if it exists.
    pub fn find(&mut self, rule: usize, identifier: u64) -> Option<&mut Key> {
        self.rules.get_mut(rule)?.keys.get_mut(&identifier)
    }

    /// Sum of the absolute balances of all keys.
    pub fn balances(&self) -> u64 {
        let of_rule = |of_rule: &OfRule| {
            let held: u64 = of_rule.keys.values().map(|key| key.balance.unsigned_abs()).sum();
            of_rule.balances + held
        };
        self.rules.iter().map(of_rule).sum()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.rules.iter().map(|of_rule| of_rule.keys.len()).sum()
    }
}

impl OfRule {
    fn evict(&mut self, at_us: u64) {
        for _ in 0..KEYS_A_USE {
            let Some((_, identifier)) = self.leaving.pop_front_if(|(when, _)| *when <= at_us) else { return };
            let when = self.keys.get(&identifier).map_or(0, |key| key.last_used_us + kept_us(&self.rule));
            if when > at_us {
                self.leaving.push_back((when, identifier));
            } else if let Some(key) = self.keys.remove(&identifier) {
                self.balances += key.balance.unsigned_abs();
            }
        }
    }
}

/// Two cells of the formula, and the exact window, are over after twice the window.
fn kept_us(rule: &Rule) -> u64 {
    rule.window_ms.saturating_mul(2_000).saturating_add(GRACE_US)
}
