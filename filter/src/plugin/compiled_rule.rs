//! What of a rule's checks never changes, and a request's part of them: together they are what the limiter is asked.
//!
//! A key is written into the buffer of the request at hand: the identifier between the constant ends of its rule's key.
//!
//! Leaves to others: which rules a request meets and with what limit (`request`), the key's format (`weir_core::model::key`).

use weir_core::limiter::{Check, ExactCheck, ExactLimit, Policy};
use weir_core::matching::canonical::identifier_in_epoch;
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{KeyParts, MAX_KEY_BYTES};
use weir_core::rules::{Cost, OnFailure, Rule, UnknownKey};

/// The parts of a rule's keys that do not change; a ledger's bucket is the identifier alone.
pub(super) struct CompiledRule {
    pub(super) algorithm: Algorithm,
    before: Vec<u8>,
    duration: [u8; 8],
    resolution: [u8; 2],
    cell_ms: u64,
    pub(super) policy: Policy,
}

/// A check whose key stands in the plugin's `keys`.
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
    /// The rule's key with an empty identifier, cut where that stands; identifier, duration, epoch and resolution follow.
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
        // The configuration's own bounds are the key's, but for a ledger, which has no window and no key. Were it otherwise
        // the key would be empty and shared.
        let _ = parts.encode(&mut key);
        // With the length of the empty identifier.
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

/// What the limiter is asked of a rule that counts in windows.
pub(super) fn check<'a>(resolved: &Resolved, compiled: &CompiledRule, key: &'a [u8]) -> Check<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    let CompiledRule { cell_ms, policy, .. } = *compiled;
    Check { rule, key, cell_ms, limit: resolved.limit, cost: resolved.cost, policy }
}

/// The limit where it is held exactly.
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

/// What the limiter is asked of a rule whose limit is held exactly.
pub(super) fn exact_check<'a>(
    resolved: &Resolved,
    compiled: &CompiledRule,
    limit: ExactLimit<'a>,
) -> ExactCheck<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    ExactCheck { rule, limit, cost: resolved.cost, policy: compiled.policy }
}

/// The rules that apply to the request at hand and are decided with it: exact shadow rules are ruled later.
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
