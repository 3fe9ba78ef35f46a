//! The constant part of a rule's checks, prepared once. With the values of a request it becomes a check.

use super::check::{Check, Checks, Policy};
use crate::matching::canonical::identifier_in_epoch;
use crate::model::exact::Algorithm;
use crate::model::key::{KeyParts, MAX_KEY_BYTES};
use alloc::vec::Vec;

/// A rule as a limiter applies it. The key of a request is its identifier between the constant beginning and end of the rule's
/// keys.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    /// How the rule behaves.
    pub policy: Policy,
    number: u16,
    algorithm: Algorithm,
    cell_ms: u64,
    before: Vec<u8>,
    duration: [u8; 8],
    resolution: [u8; 2],
}

/// What applies to one identifier of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The limit.
    pub limit: u64,
    /// That of [`Check`].
    pub configured: Option<u64>,
    /// Cost of the request.
    pub cost: u64,
    /// When the identifier was last reset.
    pub epoch: u32,
    /// Whether it is enforced; otherwise the check is in shadow mode.
    pub enforced: bool,
    /// See [`Policy::bans_by_charge`].
    pub bans_by_charge: bool,
}

impl CompiledRule {
    /// Rule `number`, whose keys have these parts. Their identifier and epoch come from each request.
    pub fn new(number: u16, algorithm: Algorithm, parts: &KeyParts<'_>, policy: Policy) -> CompiledRule {
        let mut before = Vec::with_capacity(MAX_KEY_BYTES);
        // Configurations have the same bounds as keys, so this succeeds for all rules but ledgers, which have no key.
        let _ = KeyParts { identifier: b"", epoch: 0, ..*parts }.encode(&mut before);
        // The length of the identifier, which is empty, and the window, epoch and resolution follow.
        before.truncate(before.len().saturating_sub(1 + 8 + 4 + 2));
        CompiledRule {
            policy,
            number,
            algorithm,
            cell_ms: parts.cell_ms(),
            before,
            duration: parts.duration_ms.to_le_bytes(),
            resolution: parts.resolution.to_le_bytes(),
        }
    }

    /// Appends the check of an identifier.
    pub fn check(&self, identifier: &[u8], terms: Terms, checks: &mut Checks) {
        let Terms { limit, configured, cost, epoch, enforced, bans_by_charge } = terms;
        let CompiledRule { number: rule, algorithm, cell_ms, policy, .. } = *self;
        let policy = Policy { shadow: policy.shadow || !enforced, bans_by_charge, ..policy };
        let check = Check { rule, algorithm, key: &[], cell_ms, limit, configured, cost, policy };
        checks.push(check, |keys| self.write_key(identifier, epoch, keys));
    }

    /// Appends the key of an identifier that was last reset at `epoch`, or the bucket of a ledger.
    pub fn write_key(&self, identifier: &[u8], epoch: u32, out: &mut Vec<u8>) {
        if self.algorithm.zone().is_some() {
            return identifier_in_epoch(identifier, epoch, out);
        }
        out.extend_from_slice(&self.before);
        out.push(u8::try_from(identifier.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(identifier);
        out.extend_from_slice(&self.duration);
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&self.resolution);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::Key;

    const TERMS: Terms =
        Terms { limit: 1, configured: None, cost: 1, epoch: 0, enforced: true, bans_by_charge: false };

    #[test]
    fn keys_are_those_of_their_parts() {
        let parts = |identifier, epoch| KeyParts {
            workspace: b"w",
            namespace: b"n",
            identifier,
            duration_ms: 60_000,
            epoch,
            resolution: 10,
        };
        let rule = CompiledRule::new(3, Algorithm::Window, &parts(b"ignored", 9), Policy::default());
        let mut checks = Checks::default();
        for (identifier, epoch) in [(b"alice".as_slice(), 0), (b"b", 7)] {
            rule.check(identifier, Terms { epoch, ..TERMS }, &mut checks);
        }
        let keys = [parts(b"alice", 0), parts(b"b", 7)].map(|parts| Key::new(&parts).unwrap());
        let found: Vec<&[u8]> = checks.iter().map(|check| check.key).collect();
        assert_eq!(found, keys.each_ref().map(Key::as_bytes));
        assert!(checks.iter().all(|check| check.rule == 3 && check.cell_ms == 6_000));
    }

    #[test]
    fn a_check_that_is_not_enforced_is_in_shadow_mode() {
        let parts = KeyParts {
            workspace: b"w",
            namespace: b"n",
            identifier: b"",
            duration_ms: 1_000,
            epoch: 0,
            resolution: 1,
        };
        for (shadow, enforced, expected) in
            [(false, true, false), (false, false, true), (true, true, true), (true, false, true)]
        {
            let policy = Policy { shadow, ..Policy::default() };
            let rule = CompiledRule::new(0, Algorithm::Window, &parts, policy);
            let mut checks = Checks::default();
            rule.check(b"alice", Terms { enforced, ..TERMS }, &mut checks);
            assert_eq!(checks.only().unwrap().policy.shadow, expected);
        }
    }

    #[test]
    fn a_ledger_has_a_bucket() {
        let parts = KeyParts {
            workspace: b"w",
            namespace: b"n",
            identifier: b"",
            duration_ms: 0,
            epoch: 0,
            resolution: 1,
        };
        let rule = CompiledRule::new(0, Algorithm::Ledger { zone: 7 }, &parts, Policy::default());
        let mut checks = Checks::default();
        rule.check(b"alice", Terms { limit: 0, ..TERMS }, &mut checks);
        assert_eq!(checks.get(0).unwrap().key, b"alice");
    }
}
