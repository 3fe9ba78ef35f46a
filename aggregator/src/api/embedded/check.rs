//! One check of a call, its validation, and the answer.

use weir_core::model::exact::{Algorithm, Charge, ChargeResult, MAX_LOG_LIMIT, Verdict};
use weir_core::model::key::{
    HARD_LIMIT_RESOLUTION, KeyError, KeyParts, MAX_TEXT_BYTES, RESERVED_PREFIX, is_reserved,
};
use weir_core::model::window::{MAX_COUNT, MAX_LIMIT};

/// A check against one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCheck {
    /// How the limit is counted.
    pub algorithm: Algorithm,
    /// The workspace of the counts; at most 64 bytes, as are the next two.
    pub workspace: Vec<u8>,
    /// The namespace of the identifier.
    pub namespace: Vec<u8>,
    /// In canonical form, see `weir_core::rules::identifier`.
    pub identifier: Vec<u8>,
    /// The window, 1 s to 366 days; ignored for a ledger, whose zone defines it.
    pub duration_ms: u64,
    /// For windows only: no window of any placement may hold more than the limit; see `weir_core::rules::Rule::hard_limit`.
    pub hard_limit: bool,
    /// Most that may be used in a window; ignored for a ledger.
    pub limit: u64,
    /// What is charged; 0 only reads.
    pub cost: u64,
}

/// What checks of a call or of a division count on together. The limit is not part of it, nor is the epoch: live control gives that to a
/// check as it is decided, so no count and no amount may be kept by this key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CountedKey {
    workspace: Vec<u8>,
    namespace: Vec<u8>,
    identifier: Vec<u8>,
    duration_ms: u64,
    hard_limit: bool,
}

/// What happens to a call whose checks were not all decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It continues if no limit denies; decided checks stay charged.
    Allow,
    /// It does not continue; nothing is charged.
    Deny,
}

/// The answer to all checks of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether all pass. If not, nothing is charged, unless the call continues for [`Failure::Allow`].
    pub allowed: bool,
    /// One decision for each check, in order.
    pub results: Vec<ChargeResult>,
}

/// Why a check is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitCheckError {
    /// One of the three texts is too long.
    #[error("the {field} has {bytes} bytes; at most {MAX_TEXT_BYTES} are allowed")]
    TooLong {
        /// `workspace`, `namespace` or `identifier`.
        field: &'static str,
        /// Its length in bytes.
        bytes: usize,
    },
    /// Only Weir counts in the namespace.
    #[error("a namespace that begins with {RESERVED_PREFIX} is reserved")]
    Reserved,
    /// The window is too short or too long; in milliseconds.
    #[error("a window of {0} ms is outside 1 s to 366 days")]
    Duration(u64),
    /// The limit is too high for a log, which stores an entry for each use.
    #[error("a limit of {0} is more than a log can hold; use at most {MAX_LOG_LIMIT}, or a window")]
    LogLimit(u64),
    /// The cost is higher than a ledger records.
    #[error("a cost of {0} is more than a ledger records, which is {MAX_COUNT}")]
    Cost(u64),
    /// The three texts and the window do not form a valid key.
    #[error("{0}")]
    Key(#[from] KeyError),
}

impl LimitCheck {
    /// Validates the check.
    pub fn validate(&self) -> Result<(), LimitCheckError> {
        let texts = [
            ("workspace", &self.workspace),
            ("namespace", &self.namespace),
            ("identifier", &self.identifier),
        ];
        for (field, text) in texts {
            if text.len() > MAX_TEXT_BYTES {
                return Err(LimitCheckError::TooLong { field, bytes: text.len() });
            }
        }
        if is_reserved(&self.namespace) {
            return Err(LimitCheckError::Reserved);
        }
        if self.algorithm.zone().is_some() {
            let is_recordable = self.cost <= MAX_COUNT;
            return is_recordable.then_some(()).ok_or(LimitCheckError::Cost(self.cost));
        }
        if self.algorithm.kind().is_exact() && self.limit > self.algorithm.max_limit() {
            return Err(LimitCheckError::LogLimit(self.limit));
        }
        match self.parts(0).check() {
            Err(KeyError::Duration(ms)) => Err(LimitCheckError::Duration(ms)),
            other => Ok(other?),
        }
    }

    /// What it counts on.
    pub fn counted_key(&self) -> CountedKey {
        CountedKey {
            workspace: self.workspace.clone(),
            namespace: self.namespace.clone(),
            identifier: self.identifier.clone(),
            duration_ms: self.duration_ms,
            hard_limit: self.hard_limit,
        }
    }

    /// The parts of its key, in this epoch.
    pub(super) fn parts(&self, epoch: u32) -> KeyParts<'_> {
        KeyParts {
            workspace: &self.workspace,
            namespace: &self.namespace,
            identifier: &self.identifier,
            duration_ms: self.duration_ms,
            epoch,
            resolution: if self.hard_limit { HARD_LIMIT_RESOLUTION } else { 1 },
        }
    }

    /// Its charge, if the limit is a log or a ledger.
    pub(super) fn charge(&self, epoch: u32) -> Result<Option<Charge>, LimitCheckError> {
        let key = self.algorithm.exact_key(&self.parts(epoch))?;
        let most = self.limit.min(self.algorithm.max_limit());
        Ok(key.map(|key| Charge { key, most, cost: self.cost.min(MAX_COUNT) }))
    }

    /// The decision if the check was not tried.
    pub(super) fn untried(&self) -> ChargeResult {
        let has_window = self.algorithm.zone().is_none();
        ChargeResult {
            verdict: Verdict::Untried,
            limit: if has_window { self.limit.min(MAX_LIMIT) } else { 0 },
            window_ms: if has_window { self.duration_ms } else { 0 },
            ..ChargeResult::UNDECIDED
        }
    }
}

impl Answer {
    /// The answer if nothing is decided.
    pub(super) fn undecided(checks: usize) -> Answer {
        Answer { allowed: false, results: vec![ChargeResult::UNDECIDED; checks] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit_check(algorithm: Algorithm) -> LimitCheck {
        LimitCheck {
            algorithm,
            workspace: b"w".to_vec(),
            namespace: b"n".to_vec(),
            identifier: b"i".to_vec(),
            duration_ms: 60_000,
            hard_limit: false,
            limit: 10,
            cost: 1,
        }
    }

    #[test]
    fn an_invalid_check_is_reported() {
        let window = limit_check(Algorithm::Window);
        let log = limit_check(Algorithm::Log);
        let ledger = limit_check(Algorithm::Ledger { zone: 3 });
        let long = vec![b'x'; 65];
        let too_long = |field| Err(LimitCheckError::TooLong { field, bytes: 65 });
        let day_ms = 24 * 3_600 * 1_000;
        let cases = [
            (window.clone(), Ok(())),
            (LimitCheck { workspace: long.clone(), ..window.clone() }, too_long("workspace")),
            (LimitCheck { namespace: long.clone(), ..log.clone() }, too_long("namespace")),
            (LimitCheck { identifier: long, ..ledger.clone() }, too_long("identifier")),
            (LimitCheck { namespace: b"~n".to_vec(), ..window.clone() }, Err(LimitCheckError::Reserved)),
            (LimitCheck { namespace: b"~n".to_vec(), ..log.clone() }, Err(LimitCheckError::Reserved)),
            (LimitCheck { namespace: b"n~".to_vec(), ..window.clone() }, Ok(())),
            (LimitCheck { identifier: vec![0xff; 64], ..window.clone() }, Ok(())),
            (LimitCheck { duration_ms: 999, ..window.clone() }, Err(LimitCheckError::Duration(999))),
            (LimitCheck { duration_ms: 366 * day_ms, ..window.clone() }, Ok(())),
            (LimitCheck { hard_limit: true, ..window.clone() }, Ok(())),
            (
                LimitCheck { hard_limit: true, duration_ms: 1_005, ..window.clone() },
                Err(LimitCheckError::Key(KeyError::Resolution(10))),
            ),
            (
                LimitCheck { duration_ms: 366 * day_ms + 1, ..log.clone() },
                Err(LimitCheckError::Duration(366 * day_ms + 1)),
            ),
            (LimitCheck { duration_ms: 0, ..ledger.clone() }, Ok(())),
            (LimitCheck { limit: u64::MAX, cost: u64::MAX, ..window.clone() }, Ok(())),
            (LimitCheck { limit: 100_001, ..log.clone() }, Err(LimitCheckError::LogLimit(100_001))),
            (LimitCheck { limit: 100_000, ..log }, Ok(())),
            (LimitCheck { limit: u64::MAX, cost: MAX_COUNT, ..ledger.clone() }, Ok(())),
            (LimitCheck { cost: MAX_COUNT + 1, ..ledger }, Err(LimitCheckError::Cost(MAX_COUNT + 1))),
        ];
        for (check, expected) in cases {
            assert_eq!(check.validate(), expected, "{check:?}");
        }
    }
}
