//! Live control applied to the checks of a call. A ban denies the whole call, an exempt identifier is not counted, and limits
//! and epochs may be replaced. Controls of networks do not apply, because the API does not receive the client's address.
//!
//! The API receives identifiers in canonical form; patterns are matched against the digest of those over 64 bytes.

use super::question::{Answer, Question};
use weir_core::control::{Banned, Controls, Found, Scratch, Subject, credited};
use weir_core::model::exact::{Algorithm, ChargeResult, MAX_LOG_LIMIT, Verdict};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;

/// The checks of a call after live control.
pub(super) struct Controlled {
    /// The checks that are left to decide.
    pub questions: Vec<Question>,
    /// The epoch in which each of them counts.
    pub epochs: Vec<u32>,
    /// Their positions in the call.
    places: Vec<usize>,
    /// The decisions on all checks; live control has decided those that are not left.
    results: Vec<ChargeResult>,
    is_banned: bool,
}

impl Controlled {
    pub(super) fn of(questions: &[Question], controls: &Controls, now: UnixMs) -> Controlled {
        let mut controlled = Controlled {
            questions: Vec::with_capacity(questions.len()),
            epochs: Vec::with_capacity(questions.len()),
            places: Vec::with_capacity(questions.len()),
            results: questions.iter().map(Question::untried).collect(),
            is_banned: false,
        };
        let mut scratch = Scratch::default();
        for (place, question) in questions.iter().enumerate() {
            let found = find(question, controls, now, &mut scratch);
            controlled.add(place, question, found, now);
        }
        controlled
    }

    /// The answer, if nothing is left to decide.
    pub(super) fn answer(&self) -> Option<Answer> {
        let is_decided = self.is_banned || self.questions.is_empty();
        is_decided.then(|| Answer { allowed: !self.is_banned, results: self.results.clone() })
    }

    /// The answer to the whole call, given the answer to the checks that were left.
    pub(super) fn complete(mut self, answer: Answer) -> Answer {
        for (place, result) in self.places.iter().zip(answer.results) {
            self.results[*place] = result;
        }
        Answer { allowed: answer.allowed, results: self.results }
    }

    fn add(&mut self, place: usize, question: &Question, found: Found, now: UnixMs) {
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
            let most = if question.algorithm == Algorithm::Log { MAX_LOG_LIMIT } else { MAX_COUNT };
            let is_said = found.limit.is_some() || found.credit > 0;
            let limit = credited(found.limit.unwrap_or(question.limit), found.credit);
            let limit = if is_said { limit.min(most) } else { question.limit };
            self.questions.push(Question { limit, ..question.clone() });
            self.epochs.push(found.epoch);
            self.places.push(place);
        }
    }
}

/// Keys are bytes. Live control can name only text, so a part that is not UTF-8 matches as empty.
fn find(question: &Question, controls: &Controls, now: UnixMs, scratch: &mut Scratch) -> Found {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap_or_default().to_owned();
    let (workspace, namespace) = (text(&question.workspace), text(&question.namespace));
    let subject = Subject {
        workspace: &workspace,
        namespace: &namespace,
        raw: &question.identifier,
        canonical: &question.identifier,
        window_ms: if matches!(question.algorithm, Algorithm::Ledger { .. }) {
            0
        } else {
            question.duration_ms
        },
        address: None,
        allowed: None,
    };
    controls.find(&subject, now, scratch)
}
