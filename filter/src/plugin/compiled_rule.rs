//! The constant part of a rule's checks, prepared once. With the values of a request it becomes the check that the limiter decides.
//!
//! A request's key is the identifier between the constant beginning and end of its rule's key.

use weir_core::limiter::{Check, ExactCheck, ExactLimit, Policy};
use weir_core::matching::canonical::identifier_in_epoch;
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{KeyParts, MAX_KEY_BYTES};
use weir_core::rules::{Cost, OnFailure, Rule, UnknownKey};

/// The constant parts of a rule's keys. A ledger's bucket is the identifier alone.
pub(super) struct CompiledRule {
    pub(super) algorithm: Algorithm,
    before: Vec<u8>,
    duration: [u8; 8],
    resolution: [u8; 2],
    cell_ms: u64,
    pub(super) policy: Policy,
}

/// A check whose key is in the plugin's buffer `keys`.
#[derive(Clone, Copy)]
pub(super) struct Resolved {
    pub(super) rule: usize,
    pub(super) key_end: usize,
    pub(super) limit: u64,
    pub(super) cost: u64,
}

/// A rule that applies to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied {
    pub(super) rule: usize,
    pub(super) shadow: bool,
}

impl CompiledRule {
    /// Encodes the rule's key with an empty identifier, and cuts it there; identifier, duration, epoch and resolution follow.
    pub(super) fn of(workspace: &str, rule: &Rule) -> CompiledRule {
        let parts = KeyParts {
            workspace: workspace.as_bytes(),
            namespace: rule.namespace.as_bytes(),
            identifier: b"",
            duration_ms: rule.duration_ms,
            epoch: 0,
            resolution: rule.resolution(),
        };
        let mut key = Vec::with_capacity(MAX_KEY_BYTES);
        // The configuration has the same bounds as a key, so that this succeeds for all rules but ledgers, which have no key.
        let _ = parts.encode(&mut key);
        // This also removes the length of the empty identifier.
        key.truncate(key.len().saturating_sub(1 + 8 + 4 + 2));
        CompiledRule {
            algorithm: rule.algorithm,
            before: key,
            duration: rule.duration_ms.to_le_bytes(),
            resolution: rule.resolution().to_le_bytes(),
            cell_ms: parts.cell_ms(),
            policy: policy(rule),
        }
    }

    /// Appends the key of an identifier that was last reset at `epoch`.
    pub(super) fn write_key(&self, identifier: &[u8], epoch: u32, out: &mut Vec<u8>) {
        if matches!(self.algorithm, Algorithm::Ledger { .. }) {
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

fn policy(rule: &Rule) -> Policy {
    let (settles_within_ms, settles_at_most) = match &rule.cost {
        Cost::Response(cost) => (cost.hold_timeout_ms, cost.max),
        Cost::Fixed(_) | Cost::Header { .. } => (0, 0),
    };
    Policy {
        shadow: rule.shadow,
        trust_first: rule.unknown_key == UnknownKey::AssumeLow,
        deny_on_failure: rule.on_failure == OnFailure::Deny,
        timeout_ms: u32::try_from(rule.timeout_ms).unwrap_or(u32::MAX),
        settles_within_ms,
        settles_at_most,
    }
}

/// The limiter's check of a rule that counts in windows.
pub(super) fn check<'a>(resolved: &Resolved, compiled: &CompiledRule, key: &'a [u8]) -> Check<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    let CompiledRule { cell_ms, policy, .. } = *compiled;
    Check { rule, key, cell_ms, limit: resolved.limit, cost: resolved.cost, policy }
}

/// The limit of an exact rule.
pub(super) fn exact_limit<'a>(
    resolved: &Resolved,
    compiled: &CompiledRule,
    key: &'a [u8],
) -> Option<ExactLimit<'a>> {
    match compiled.algorithm {
        Algorithm::Window => None,
        Algorithm::Log => Some(ExactLimit::Log { key, most: resolved.limit }),
        Algorithm::Ledger { zone } => Some(ExactLimit::Ledger { zone, bucket: key }),
    }
}

/// The limiter's check of an exact rule.
pub(super) fn exact_check<'a>(
    resolved: &Resolved,
    compiled: &CompiledRule,
    limit: ExactLimit<'a>,
) -> ExactCheck<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    ExactCheck { rule, limit, cost: resolved.cost, policy: compiled.policy }
}

/// The rules that are decided together with the current request. Exact shadow rules are decided later.
pub(super) fn applied(
    resolved: &[Resolved],
    compiled_rules: &[CompiledRule],
) -> impl Iterator<Item = Applied> {
    resolved.iter().filter_map(|resolved| {
        let compiled = compiled_rules.get(resolved.rule)?;
        let shadow = compiled.policy.shadow;
        let now = !shadow || compiled.algorithm == Algorithm::Window;
        now.then_some(Applied { rule: resolved.rule, shadow })
    })
}
