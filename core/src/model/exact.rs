//! Exact limits: charges of exact requests, and their results.
//!
//! A rule's [`Algorithm`] decides where its limit is decided. A window is decided by the limiter of each node. A log is decided in Redis or
//! in the aggregator's memory, a ledger in the database. The [`Charge`]s of one request pass together or not at all.

use crate::matching::canonical::identifier_in_epoch;
use crate::model::key::{Key, KeyError, KeyParts, MAX_TEXT_BYTES};
use crate::model::window::MAX_COUNT;
use crate::model::wire;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most charges of one exact request.
pub const MAX_CHARGES: usize = 128;
/// Highest limit of a log: each unit may be an entry of its own.
pub const MAX_LOG_LIMIT: u64 = 100_000;

/// Algorithm of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Sliding windows, counted by each node and shared.
    #[default]
    Window,
    /// An exact sliding log in the region.
    Log,
    /// Every attempt is recorded in the database, in a zone that defines rate and window.
    Ledger {
        /// The zone's number.
        zone: u32,
    },
}

/// The kind of an [`Algorithm`]. Its name is the same in configurations, requests, frames and statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmKind {
    /// [`Algorithm::Window`].
    #[default]
    Window,
    /// [`Algorithm::Log`].
    Log,
    /// [`Algorithm::Ledger`].
    Ledger,
}

impl AlgorithmKind {
    /// Each kind with its name.
    pub const WORDS: [(&'static str, AlgorithmKind); 3] = {
        use AlgorithmKind::{Ledger, Log, Window};
        [(Window.name(), Window), (Log.name(), Log), (Ledger.name(), Ledger)]
    };

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            AlgorithmKind::Window => "sliding_window",
            AlgorithmKind::Log => "sliding_log",
            AlgorithmKind::Ledger => "ledger",
        }
    }

    /// Those of exact limits.
    pub const EXACT: [AlgorithmKind; 2] = [AlgorithmKind::Log, AlgorithmKind::Ledger];

    /// Its name in one word, for narrow columns.
    pub const fn word(self) -> &'static str {
        match self {
            AlgorithmKind::Window => "window",
            AlgorithmKind::Log => "log",
            AlgorithmKind::Ledger => "ledger",
        }
    }

    /// The algorithm of this kind. Only a ledger has a zone.
    pub fn algorithm(self, zone: u32) -> Algorithm {
        match self {
            AlgorithmKind::Window => Algorithm::Window,
            AlgorithmKind::Log => Algorithm::Log,
            AlgorithmKind::Ledger => Algorithm::Ledger { zone },
        }
    }

    /// Highest limit that has an effect; 0 for a ledger, whose zone has it.
    pub const fn max_limit(self) -> u64 {
        match self {
            AlgorithmKind::Window => MAX_COUNT,
            AlgorithmKind::Log => MAX_LOG_LIMIT,
            AlgorithmKind::Ledger => 0,
        }
    }

    /// Whether a store decides each request, and not the counts of an Envoy.
    pub fn is_exact(self) -> bool {
        AlgorithmKind::EXACT.contains(&self)
    }

    /// The kind of this name.
    pub fn of(name: &str) -> Option<AlgorithmKind> {
        AlgorithmKind::WORDS.iter().find(|(word, _)| *word == name).map(|(_, kind)| *kind)
    }
}

impl Algorithm {
    /// Its kind.
    pub fn kind(self) -> AlgorithmKind {
        match self {
            Algorithm::Window => AlgorithmKind::Window,
            Algorithm::Log => AlgorithmKind::Log,
            Algorithm::Ledger { .. } => AlgorithmKind::Ledger,
        }
    }

    /// The zone that has the limit and the window; `None` if the rule has them.
    pub fn zone(self) -> Option<u32> {
        match self {
            Algorithm::Window | Algorithm::Log => None,
            Algorithm::Ledger { zone } => Some(zone),
        }
    }

    /// Highest limit that has an effect; 0 for a ledger, whose zone has it.
    pub fn max_limit(self) -> u64 {
        self.kind().max_limit()
    }

    /// A charge in its wire format, of a key or a bucket.
    pub fn charge_to_wire(self, key: &[u8], most: u64, cost: u64) -> wire::Charge {
        let free = wire::Charge { cost, ..wire::Charge::default() };
        match self {
            Algorithm::Window | Algorithm::Log => {
                wire::Charge { log: Some(wire::LogLimit { key: key.to_vec(), most }), ..free }
            }
            Algorithm::Ledger { zone } => {
                wire::Charge { ledger: Some(wire::LedgerLimit { zone, bucket: key.to_vec() }), ..free }
            }
        }
    }

    /// What its store counts on, for a key of these parts; `None` for windows, which no store decides.
    pub fn exact_key(self, parts: &KeyParts<'_>) -> Result<Option<ExactKey>, KeyError> {
        Ok(match self {
            Algorithm::Window => None,
            Algorithm::Log => Some(ExactKey::Log(Key::new(parts)?)),
            Algorithm::Ledger { zone } => {
                let mut bucket = Vec::new();
                identifier_in_epoch(parts.identifier, parts.epoch, &mut bucket);
                Some(ExactKey::Ledger { zone, bucket: bucket.into() })
            }
        })
    }
}

/// One charge of a request to an exact limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// What the limit counts on.
    pub key: ExactKey,
    /// Most that may be used in a window, at most [`AlgorithmKind::max_limit`]; 0 for a ledger, whose zone has it.
    pub most: u64,
    /// Cost of the request; 0 only checks.
    pub cost: u64,
}

/// What an exact limit counts on: one identifier under one limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExactKey {
    /// The key of a log. Its duration is the window; its epoch separates use before and after a reset.
    Log(Key),
    /// A bucket of a zone of the ledger.
    Ledger {
        /// The zone.
        zone: u32,
        /// The identifier in canonical form with its epoch, at most [`MAX_TEXT_BYTES`] bytes.
        bucket: Box<[u8]>,
    },
}

/// Identifies an exact request for ever: repeating it has no further effect, and it can be refunded by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExactRequestId(pub [u8; 16]);

/// Result of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeResult {
    /// Whether it passes.
    pub verdict: Verdict,
    /// The limit that was applied; 0 if it is not known.
    pub limit: u64,
    /// What could still be used now, after this charge.
    pub remaining: u64,
    /// Milliseconds until the oldest use that counts now no longer does; 0 if nothing counts.
    pub reset_ms: u64,
    /// The window in milliseconds; 0 if it is not known.
    pub window_ms: u64,
    /// Under which number the ledger recorded it.
    pub transaction: Option<u64>,
}

/// Whether a charge passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store did not answer in time, or there is none.
    Undecided,
    /// Another charge of the same request did not pass, so this one was not tried, or was refunded.
    Untried,
    /// It passes and is charged.
    Allowed,
    /// It does not pass.
    Denied {
        /// Milliseconds until the same cost could pass, given what counts now; `None`: never, as it exceeds the limit.
        retry_after_ms: Option<u64>,
    },
}

/// Why a charge is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// The bytes are no key.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// Neither a log nor a ledger, or both.
    #[error("a charge names one limit, a log or a ledger")]
    Limit,
    /// The bucket is too long.
    #[error("a bucket of {0} bytes is longer than {MAX_TEXT_BYTES}")]
    Bucket(usize),
    /// The cost is higher than a ledger records.
    #[error("a cost of {0} is more than a ledger records, which is {MAX_COUNT}")]
    Cost(u64),
}

impl ExactRequestId {
    /// The id of `worker`'s exact request number `id`. Workers are random numbers.
    pub fn of(worker: u64, id: u64) -> ExactRequestId {
        let mut bytes = [0; 16];
        let (first, second) = bytes.split_at_mut(8);
        first.copy_from_slice(&worker.to_le_bytes());
        second.copy_from_slice(&id.to_le_bytes());
        ExactRequestId(bytes)
    }
}

impl ExactKey {
    /// Its algorithm.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            ExactKey::Log(_) => Algorithm::Log,
            ExactKey::Ledger { zone, .. } => Algorithm::Ledger { zone: *zone },
        }
    }

    /// The canonical bytes of its key, or its bucket.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            ExactKey::Log(key) => key.as_bytes(),
            ExactKey::Ledger { bucket, .. } => bucket,
        }
    }

    /// Its key, if the limit has a window of its own; `None` for a ledger.
    pub fn own(&self) -> Option<&Key> {
        match self {
            ExactKey::Log(key) => Some(key),
            ExactKey::Ledger { .. } => None,
        }
    }

    /// The identifier; for a ledger with its epoch.
    pub fn identifier(&self) -> &[u8] {
        self.own().map_or(self.as_bytes(), |key| key.parts().identifier)
    }
}

impl Charge {
    /// The wire format.
    pub fn to_wire(&self) -> wire::Charge {
        self.key.algorithm().charge_to_wire(self.key.as_bytes(), self.most, self.cost)
    }

    /// Reads the wire format. Of a log, which holds much less, numbers above its most are reduced to that.
    pub fn from_wire(charge: &wire::Charge) -> Result<Charge, ChargeError> {
        let cost = charge.cost.min(MAX_COUNT);
        match (&charge.log, &charge.ledger) {
            (Some(log), None) => {
                let (key, most) = (ExactKey::Log(Key::parse(&log.key)?), log.most.min(MAX_LOG_LIMIT));
                Ok(Charge { key, most, cost })
            }
            (None, Some(wire::LedgerLimit { zone, bucket })) => {
                if bucket.len() > MAX_TEXT_BYTES {
                    return Err(ChargeError::Bucket(bucket.len()));
                }
                if cost < charge.cost {
                    return Err(ChargeError::Cost(charge.cost));
                }
                let key = ExactKey::Ledger { zone: *zone, bucket: bucket.as_slice().into() };
                Ok(Charge { key, most: 0, cost })
            }
            _ => Err(ChargeError::Limit),
        }
    }
}

impl ChargeResult {
    /// The result of a charge that was not decided.
    pub const UNDECIDED: ChargeResult = ChargeResult {
        verdict: Verdict::Undecided,
        limit: 0,
        remaining: 0,
        reset_ms: 0,
        window_ms: 0,
        transaction: None,
    };

    /// Whether it passes.
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Whether it is denied.
    pub fn is_denied(&self) -> bool {
        matches!(self.verdict, Verdict::Denied { .. })
    }

    /// The wire format.
    pub fn to_wire(&self) -> wire::ChargeResult {
        let (verdict, retry_after_ms, never) = match self.verdict {
            Verdict::Undecided => (0, 0, false),
            Verdict::Untried => (1, 0, false),
            Verdict::Allowed => (2, 0, false),
            Verdict::Denied { retry_after_ms } => (3, retry_after_ms.unwrap_or(0), retry_after_ms.is_none()),
        };
        wire::ChargeResult {
            verdict,
            limit: self.limit,
            remaining: self.remaining,
            reset_ms: self.reset_ms,
            window_ms: self.window_ms,
            transaction: self.transaction.unwrap_or(0),
            retry_after_ms,
            never,
        }
    }

    /// Reads the wire format; an unknown verdict is undecided.
    pub fn from_wire(result: &wire::ChargeResult) -> ChargeResult {
        let verdict = match result.verdict {
            1 => Verdict::Untried,
            2 => Verdict::Allowed,
            3 => {
                let wait = (!result.never).then_some(result.retry_after_ms);
                Verdict::Denied { retry_after_ms: wait }
            }
            _ => Verdict::Undecided,
        };
        ChargeResult {
            verdict,
            limit: result.limit,
            remaining: result.remaining,
            reset_ms: result.reset_ms,
            window_ms: result.window_ms,
            transaction: Some(result.transaction).filter(|id| *id != 0),
        }
    }
}

/// Whether all of them pass.
pub fn all_allowed(results: &[ChargeResult]) -> bool {
    results.iter().all(ChargeResult::is_allowed)
}

/// The charges of an exact request, or its first error.
pub fn charges(request: &wire::ExactRequest) -> Result<Vec<Charge>, ChargeError> {
    request.charges.iter().map(Charge::from_wire).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        let parts = KeyParts {
            workspace: b"w",
            namespace: b"n",
            identifier: b"i",
            duration_ms: 60_000,
            epoch: 3,
            resolution: 1,
        };
        Key::new(&parts).unwrap()
    }

    #[test]
    fn charges_and_results_survive_encoding() {
        let ledger = ExactKey::Ledger { zone: 9, bucket: b"b".as_slice().into() };
        for (key, most) in [(ExactKey::Log(key()), 7), (ledger, 0)] {
            let charge = Charge { key, most, cost: 2 };
            assert_eq!(Charge::from_wire(&charge.to_wire()), Ok(charge));
        }
        let verdicts = [
            Verdict::Undecided,
            Verdict::Untried,
            Verdict::Allowed,
            Verdict::Denied { retry_after_ms: None },
            Verdict::Denied { retry_after_ms: Some(0) },
            Verdict::Denied { retry_after_ms: Some(8) },
        ];
        for verdict in verdicts {
            let result = ChargeResult {
                verdict,
                limit: 1,
                remaining: 2,
                reset_ms: 3,
                window_ms: 4,
                transaction: Some(5),
            };
            assert_eq!(ChargeResult::from_wire(&result.to_wire()), result);
        }
    }

    #[test]
    fn invalid_charges_are_refused() {
        let log = wire::LogLimit { key: key().as_bytes().to_vec(), most: u64::MAX };
        let ledger = wire::LedgerLimit { zone: 1, bucket: Vec::from([0; MAX_TEXT_BYTES + 1]) };
        let charge = |log, ledger| Charge::from_wire(&wire::Charge { log, ledger, cost: u64::MAX });
        assert_eq!(charge(None, None), Err(ChargeError::Limit));
        assert_eq!(charge(Some(log.clone()), Some(ledger.clone())), Err(ChargeError::Limit));
        assert_eq!(charge(None, Some(ledger)), Err(ChargeError::Bucket(MAX_TEXT_BYTES + 1)));
        let ledger = wire::LedgerLimit { zone: 1, bucket: b"b".to_vec() };
        assert_eq!(charge(None, Some(ledger)), Err(ChargeError::Cost(u64::MAX)));
        let bad = wire::LogLimit { key: Vec::new(), ..log.clone() };
        assert_eq!(charge(Some(bad), None), Err(ChargeError::Key(KeyError::Malformed)));
        let clamped = Charge { key: ExactKey::Log(key()), most: MAX_LOG_LIMIT, cost: MAX_COUNT };
        assert_eq!(charge(Some(log), None), Ok(clamped));
    }
}
