//! The plan's rules as the limiter checks them: the key of a rule and identifier, and the checks of a request.

use crate::plan::{Exact, HOLD_MS, Rule};
use weir_core::limiter::{Check, Checks, CompiledRule, Policy, Visibility};
use weir_core::model::exact::{Algorithm, MAX_LOG_LIMIT};
use weir_core::model::key::{KeyParts, MAX_KEY_BYTES};

/// The workspace of all keys.
pub const WORKSPACE: &[u8] = b"simulated";

/// A rule with the constant parts of its keys, as the filter stores it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The rule as the plan gives it.
    pub rule: Rule,
    /// The number of the rule whose keys it counts.
    pub counts: usize,
    /// The namespace of its keys.
    pub namespace: Vec<u8>,
    /// The length of its cells, in milliseconds.
    pub cell_ms: u64,
    /// Each rule has its own zone of the ledger.
    algorithm: Algorithm,
    /// Writes the keys. A ledger's buckets are whole keys here, which show their rule.
    compiled: CompiledRule,
}

impl Shape {
    /// The `number`-th rule of a plan.
    pub fn new(number: usize, rule: Rule) -> Shape {
        let counts = rule.counts(number);
        let namespace = format!("rule-{counts}").into_bytes();
        let parts = KeyParts {
            workspace: WORKSPACE,
            namespace: &namespace,
            identifier: b"",
            duration_ms: rule.window_ms,
            epoch: 0,
            resolution: rule.resolution(),
        };
        let policy = Policy {
            shadow: rule.shadow,
            trust_first: rule.trust_first,
            deny_on_failure: rule.deny_on_failure,
            visibility: Visibility::Shown,
            timeout_ms: rule.timeout_ms,
            settles_within_ms: if rule.reserve > 0 { HOLD_MS as u32 } else { 0 },
            settles_at_most: rule.reserve,
            ..Policy::default()
        };
        let algorithm = match rule.exact {
            None => Algorithm::Window,
            Some(Exact::Log) => Algorithm::Log,
            Some(Exact::Ledger) => Algorithm::Ledger { zone: number as u32 },
        };
        let compiled = CompiledRule::new(number as u16, Algorithm::Window, &parts, policy);
        Shape { rule, counts, cell_ms: parts.cell_ms(), algorithm, compiled, namespace }
    }

    /// Appends the key of `identifier` to `out`.
    pub fn write_key(&self, identifier: u64, out: &mut Vec<u8>) {
        let mut text = [0u8; 20];
        let digits = decimal(identifier, &mut text);
        self.compiled.write_key(digits, 0, out);
    }

    /// The key of `identifier`.
    pub fn key(&self, identifier: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(MAX_KEY_BYTES);
        self.write_key(identifier, &mut key);
        key
    }

    /// The cost that a request is checked with: its reserve, if the rule has one, otherwise `cost`.
    pub fn judged_cost(&self, cost: u64) -> u64 {
        if self.rule.reserve > 0 { self.rule.reserve } else { cost }
    }

    /// Appends the check of a request under this rule, the `number`-th of the plan.
    pub fn check(&self, number: usize, identifier: u64, cost: u64, checks: &mut Checks) {
        let (limit, cost) = match self.algorithm {
            Algorithm::Window => (self.rule.limit, self.judged_cost(cost)),
            Algorithm::Log | Algorithm::Ledger { .. } => (self.rule.limit.min(MAX_LOG_LIMIT), cost),
        };
        let (algorithm, cell_ms, policy) = (self.algorithm, self.cell_ms, self.compiled.policy);
        let rule = number as u16;
        let check = Check { rule, algorithm, key: &[], cell_ms, limit, configured: None, cost, policy };
        checks.push(check, |keys| self.write_key(identifier, keys));
    }
}

/// The rule and identifier of a key; `None` if no request has the key, as with an overflow cell's.
pub fn parse(key: &[u8]) -> Option<(usize, u64)> {
    let identifier = std::str::from_utf8(KeyParts::decode(key).ok()?.identifier).ok()?.parse().ok()?;
    Some((parse_rule(key)?, identifier))
}

/// The rule of a key, including an overflow cell's.
pub fn parse_rule(key: &[u8]) -> Option<usize> {
    let namespace = KeyParts::decode(key).ok()?.namespace;
    std::str::from_utf8(namespace.strip_prefix(b"rule-")?).ok()?.parse().ok()
}

/// The rules in a mask.
pub fn rules(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(next)
    })
}

/// An identifier in decimal, as in keys and in commands of operators.
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
    fn a_key_parses_to_its_rule_and_identifier() {
        for (rule, identifier) in [(0, 0), (3, 17), (63, u64::MAX)] {
            let shape = Shape::new(rule, Rule::new(5, 60_000));
            assert_eq!(parse(&shape.key(identifier)), Some((rule, identifier)));
        }
        assert_eq!(parse(b"x"), None);
        assert_eq!(rules(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
    }
}
