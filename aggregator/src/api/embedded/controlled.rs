//! Live control applied to the checks of a call. A ban denies the whole call, an exempt identifier is not counted, and limits
//! and epochs may be replaced. Controls of networks do not apply, because the API does not receive the client's address.
//!
//! The API receives identifiers in canonical form; patterns are matched against the digest of those over 64 bytes.

use super::check::{Answer, LimitCheck};
use weir_core::control::{Banned, Controls, Found, Scratch, Subject};
use weir_core::model::exact::{ChargeResult, Verdict};
use weir_core::model::time::UnixMs;

/// How a check counts under live control, beside its limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// The epoch of its key.
    pub epoch: u32,
    /// The limit without live control, if live control sets another.
    pub configured: Option<u64>,
}

impl Counted {
    /// `check` has the limit without live control.
    pub(super) fn of(check: &LimitCheck, found: &Found) -> Counted {
        Counted { epoch: found.epoch, configured: found.sets_limit().then_some(check.limit) }
    }
}

/// The checks of a call after live control.
pub(super) struct Controlled {
    /// The checks that are left to decide.
    pub checks: Vec<LimitCheck>,
    /// How each of them counts.
    pub counted: Vec<Counted>,
    /// Their positions in the call.
    places: Vec<usize>,
    /// The decisions on all checks; live control has decided those that are not left.
    results: Vec<ChargeResult>,
    is_banned: bool,
}

impl Controlled {
    pub(super) fn of(checks: &[LimitCheck], controls: &Controls, now: UnixMs) -> Controlled {
        let mut controlled = Controlled {
            checks: Vec::with_capacity(checks.len()),
            counted: Vec::with_capacity(checks.len()),
            places: Vec::with_capacity(checks.len()),
            results: checks.iter().map(LimitCheck::untried).collect(),
            is_banned: false,
        };
        let mut scratch = Scratch::default();
        for (place, check) in checks.iter().enumerate() {
            let found = find(check, controls, now, &mut scratch);
            controlled.add(place, check, found, now);
        }
        controlled
    }

    /// The answer, if nothing is left to decide.
    pub(super) fn answer(&self) -> Option<Answer> {
        let is_decided = self.is_banned || self.checks.is_empty();
        is_decided.then(|| Answer { allowed: !self.is_banned, results: self.results.clone() })
    }

    /// The position in the call of a check that is left to decide.
    pub(super) fn place(&self, left: usize) -> usize {
        self.places.get(left).copied().unwrap_or(left)
    }

    /// The answer to the whole call, given the answer to the checks that were left.
    pub(super) fn complete(mut self, answer: Answer) -> Answer {
        for (place, result) in self.places.iter().zip(answer.results) {
            self.results[*place] = result;
        }
        Answer { allowed: answer.allowed, results: self.results }
    }

    fn add(&mut self, place: usize, check: &LimitCheck, found: Found, now: UnixMs) {
        if let Some(ban) = found.ban {
            let retry_after_ms = match ban {
                Banned::Until(at) => Some(at.0.saturating_sub(now.0)),
                Banned::ForEver => None,
            };
            self.is_banned = true;
            self.results[place].verdict = Verdict::Denied { retry_after_ms };
        } else if found.exempt {
            let limit = self.results[place].limit;
            self.results[place] =
                ChargeResult { verdict: Verdict::Allowed, remaining: limit, ..self.results[place] };
        } else {
            let limit = found.limit_of(check.limit, check.algorithm);
            self.checks.push(LimitCheck { limit, ..check.clone() });
            self.counted.push(Counted::of(check, &found));
            self.places.push(place);
        }
    }
}

/// Keys are bytes. Live control can name only text, so a part that is not UTF-8 matches as empty.
pub(super) fn find(check: &LimitCheck, controls: &Controls, now: UnixMs, scratch: &mut Scratch) -> Found {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap_or_default().to_owned();
    let (workspace, namespace) = (text(&check.workspace), text(&check.namespace));
    let subject = Subject {
        workspace: &workspace,
        namespace: &namespace,
        raw: &check.identifier,
        canonical: &check.identifier,
        window_ms: if check.algorithm.zone().is_some() { 0 } else { check.duration_ms },
        address: None,
        allowed: None,
    };
    controls.find(&subject, now, scratch)
}
