//! The plan's rules as the limiter sees them: key bytes of a rule and identifier, and the checks of a request.
//!
//! Leaves to others: deciding (`weir_core::limiter`).

use crate::plan::{Exact, HOLD_MS, Rule};
use weir_core::limiter::{Check, ExactCheck, ExactLimit, Policy};
use weir_core::model::exact::MAX_LOG_LIMIT;
use weir_core::model::key::{KeyParts, MAX_KEY_BYTES};

/// The workspace of all keys.
pub const WORKSPACE: &[u8] = b"simulated";

/// A rule with the parts of its keys that do not change, as the filter keeps it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// As it was planned.
    pub rule: Rule,
    /// Its family of limits: each rule has its own.
    pub namespace: Vec<u8>,
    /// Length of a cell of its keys in milliseconds.
    pub cell_ms: u64,
    before: Vec<u8>,
    after: Vec<u8>,
    policy: Policy,
}

impl Shape {
    /// The `number`-th rule of a plan.
    pub fn new(number: usize, rule: Rule) -> Shape {
        let namespace = format!("rule-{number}").into_bytes();
        let parts = KeyParts {
            workspace: WORKSPACE,
            namespace: &namespace,
            identifier: b"",
            duration_ms: rule.window_ms,
            epoch: 0,
            resolution: rule.resolution(),
        };
        let mut before = Vec::with_capacity(MAX_KEY_BYTES);
        // A window that no key can have leaves an empty one; the plan's mistake shows in its first request.
        let _ = parts.encode(&mut before);
        let after = before.split_off(before.len().saturating_sub(8 + 4 + 2));
        before.pop(); // the length of the empty identifier
        let policy = Policy {
            shadow: rule.shadow,
            trust_first: rule.trust_first,
            deny_on_failure: rule.deny_on_failure,
            timeout_ms: rule.timeout_ms,
            settles_within_ms: if rule.reserve > 0 { HOLD_MS as u32 } else { 0 },
            settles_at_most: rule.reserve,
        };
        Shape { rule, cell_ms: parts.cell_ms(), before, after, policy, namespace }
    }

    /// Appends the key of `identifier` to `out`.
    pub fn write_key(&self, identifier: u64, out: &mut Vec<u8>) {
        let mut text = [0u8; 20];
        let digits = decimal(identifier, &mut text);
        out.extend_from_slice(&self.before);
        out.push(digits.len() as u8);
        out.extend_from_slice(digits);
        out.extend_from_slice(&self.after);
    }

    /// The key of `identifier`.
    pub fn key(&self, identifier: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(MAX_KEY_BYTES);
        self.write_key(identifier, &mut key);
        key
    }

    /// What a request of `cost` is judged by: its cost, or what is reserved for it.
    pub fn judged_cost(&self, cost: u64) -> u64 {
        if self.rule.reserve > 0 { self.rule.reserve } else { cost }
    }

    /// The check of a request under this rule, which is held exactly.
    pub fn exact_check<'a>(
        &self,
        (number, held): (usize, Exact),
        key: &'a [u8],
        cost: u64,
    ) -> ExactCheck<'a> {
        let limit = match held {
            Exact::Log => ExactLimit::Log { key, most: self.rule.limit.min(MAX_LOG_LIMIT) },
            // Each rule has a zone of its own.
            Exact::Ledger => ExactLimit::Ledger { zone: number as u32, bucket: key },
        };
        ExactCheck { rule: number as u16, limit, cost, policy: self.policy }
    }

    /// The check of a request under this rule.
    pub fn check<'a>(&self, number: usize, key: &'a [u8], cost: u64) -> Check<'a> {
        let (rule, cost) = (number as u16, self.judged_cost(cost));
        Check { rule, key, cell_ms: self.cell_ms, limit: self.rule.limit, cost, policy: self.policy }
    }
}

/// Rule and identifier of a key; `None` for one that no request has, as an overflow cell's.
pub fn parse(key: &[u8]) -> Option<(usize, u64)> {
    let identifier = std::str::from_utf8(KeyParts::decode(key).ok()?.identifier).ok()?.parse().ok()?;
    Some((parse_rule(key)?, identifier))
}

/// Rule of a key, also of an overflow cell's.
pub fn parse_rule(key: &[u8]) -> Option<usize> {
    let namespace = KeyParts::decode(key).ok()?.namespace;
    std::str::from_utf8(namespace.strip_prefix(b"rule-")?).ok()?.parse().ok()
}

/// Rules that a mask names.
pub fn rules(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(next)
    })
}

/// Identifiers as keys and operators have them.
pub fn decimal(number: u64, text: &mut [u8; 20]) -> &[u8] {
    let (mut left, mut from) = (number, text.len());
    loop {
        from -= 1;
        text[from] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return &text[from..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_it_is() {
        for (rule, identifier) in [(0, 0), (3, 17), (63, u64::MAX)] {
            let shape = Shape::new(rule, Rule::new(5, 60_000));
            assert_eq!(parse(&shape.key(identifier)), Some((rule, identifier)));
        }
        assert_eq!(parse(b"x"), None);
        assert_eq!(rules(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
    }
}
