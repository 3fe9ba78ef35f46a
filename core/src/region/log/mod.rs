//! The exact sliding log: each use with its time, for as long as it counts.
//!
//! In reading order: [`Log`] of one key, here; [`Logs`] of many keys, with bounds. The region's Redis keeps the same
//! log in a sorted set, by the same rules (`aggregator/src/redis/log.lua`).
//!
//! An entry counts while `now - at < window`, so that the entries of any window `(t - window, t]` never exceed the
//! limit. That needs one clock that never steps back or ahead. A log therefore has its own time, which grows with the
//! given time and stands still when that steps back. Steps ahead cannot be distinguished from time that has passed; the
//! caller must prevent them.

mod logs;
#[cfg(test)]
mod tests;

pub use logs::{Full, Logs, LogsLimits};

use crate::model::exact::{Charge, ChargeResult, ExactRequestId, Verdict};
use crate::model::key::Key;
use alloc::collections::{BTreeMap, VecDeque};

/// Most entries that are examined to compute when a cost could pass. With more entries, the result is too early, never
/// too late.
const MAX_SCAN: usize = 1_000;

/// Microseconds on some clock with an arbitrary zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// The time `us` later.
    pub const fn after(self, us: u64) -> Micros {
        Micros(self.0.saturating_add(us))
    }

    /// Microseconds since `earlier`; zero if it is in the future.
    pub const fn since(self, earlier: Micros) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Identifies one charge permanently: the exact request, and the charge's position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// The exact request.
    pub request: ExactRequestId,
    /// The position of the charge in the request.
    pub place: u8,
}

/// One charge on one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCharge {
    /// The key; its duration is the window.
    pub key: Key,
    /// The id of the charge.
    pub id: EntryId,
    /// The cost. With 0 the log is only queried.
    pub cost: u64,
    /// The most that may be used in a window.
    pub most: u64,
}

/// The decision of a log on a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDecision {
    /// Whether the cost passes.
    pub outcome: Outcome,
    /// The log's time of the decision; for a new charge also the time of its entry.
    pub at: Micros,
    /// The sum of the costs that count, this one included if it passed.
    pub used: u64,
    /// Microseconds until the oldest entry ends; 0 if there is none.
    pub reset_us: u64,
}

/// Whether a cost passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is charged, now or by an earlier request with the same id.
    Allowed,
    /// It is not charged.
    Denied {
        /// Microseconds until enough entries will have ended; less if more than [`MAX_SCAN`] entries would have to end.
        /// `None` means never, as the cost exceeds the limit.
        retry_after_us: Option<u64>,
    },
}

/// The uses of one key that count, oldest first.
#[derive(Clone, Debug)]
pub struct Log {
    window_us: u64,
    entries: VecDeque<Entry>,
    /// When each entry was charged, by its id.
    times: BTreeMap<EntryId, Micros>,
    /// The sum of the entries' costs.
    used: u64,
    /// Set once the log's time differs from the given time: both times at the last change.
    moved: Option<Moved>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Micros,
    cost: u64,
    id: EntryId,
}

#[derive(Clone, Copy, Debug)]
struct Moved {
    at: Micros,
    given: Micros,
}

impl LogCharge {
    /// A charge as a log decides it; `None` for another algorithm's.
    pub fn of(charge: &Charge, id: EntryId) -> Option<LogCharge> {
        let Charge { key, most, cost } = charge;
        Some(LogCharge { key: key.own()?.clone(), id, cost: *cost, most: *most })
    }
}

impl LogDecision {
    /// Converts to a result on a limit of `most` in `window_ms`. Waits are rounded up to whole milliseconds.
    pub fn result(&self, most: u64, window_ms: u64) -> ChargeResult {
        let verdict = match self.outcome {
            Outcome::Allowed => Verdict::Allowed,
            Outcome::Denied { retry_after_us } => {
                Verdict::Denied { retry_after_ms: retry_after_us.map(|wait| wait.div_ceil(1_000)) }
            }
        };
        ChargeResult {
            verdict,
            limit: most,
            remaining: most.saturating_sub(self.used),
            reset_ms: self.reset_us.div_ceil(1_000),
            window_ms,
            transaction: None,
        }
    }
}

impl Log {
    /// An empty log whose entries count for `window_us` microseconds.
    pub fn new(window_us: u64) -> Log {
        Log { window_us, entries: VecDeque::new(), times: BTreeMap::new(), used: 0, moved: None }
    }

    /// Charges `cost` if the total then does not exceed `most`. A charge with the same id that still counts is not
    /// charged again. A cost of 0 is judged and leaves no entry.
    pub fn decide(&mut self, now: Micros, id: EntryId, cost: u64, most: u64) -> LogDecision {
        let at = self.pass(now);
        let decided = self.judge(at, id, cost, most);
        if decided.outcome != Outcome::Allowed || cost == 0 || self.times.contains_key(&id) {
            return decided;
        }
        if self.moved.is_some() || at != now {
            self.moved = Some(Moved { at, given: now });
        }
        self.entries.push_back(Entry { at, cost, id });
        self.times.insert(id, at);
        self.used = self.used.saturating_add(cost);
        LogDecision { used: self.used, reset_us: self.reset_us(at), ..decided }
    }

    /// The result that [`Log::decide`] would return, without charging.
    pub fn peek(&mut self, now: Micros, id: EntryId, cost: u64, most: u64) -> LogDecision {
        let at = self.pass(now);
        self.judge(at, id, cost, most)
    }

    /// Takes a charge back. Returns false if there is none with this id.
    pub fn refund(&mut self, id: EntryId) -> bool {
        let Some(at) = self.times.remove(&id) else { return false };
        let first = self.entries.partition_point(|entry| entry.at < at);
        let place = self.entries.iter().skip(first).position(|entry| entry.id == id);
        let Some(entry) = place.and_then(|place| self.entries.remove(first.saturating_add(place))) else {
            return false;
        };
        self.used = self.used.saturating_sub(entry.cost);
        if self.entries.is_empty() {
            self.moved = None;
        }
        true
    }

    /// Drops entries that no longer count. Returns microseconds until the next entry ends, `None` if none is left.
    pub fn tick(&mut self, now: Micros) -> Option<u64> {
        let at = self.pass(now);
        (!self.entries.is_empty()).then(|| self.reset_us(at))
    }

    /// Number of entries; no more than the highest limit that was charged against.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The sum of the entries' costs.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is an entry with this id.
    pub fn holds(&self, id: EntryId) -> bool {
        self.times.contains_key(&id)
    }

    /// Advances the log's time, and drops entries that no longer count. Returns the log's time.
    fn pass(&mut self, now: Micros) -> Micros {
        let Some(newest) = self.entries.back().map(|entry| entry.at) else { return now };
        let before = self.moved.unwrap_or(Moved { at: newest, given: newest });
        let at = Micros(before.at.0.saturating_add(now.0.saturating_sub(before.given.0)));
        while let Some(entry) = self.entries.front().copied()
            && at.0.saturating_sub(entry.at.0) >= self.window_us
        {
            self.entries.pop_front();
            self.times.remove(&entry.id);
            self.used = self.used.saturating_sub(entry.cost);
        }
        if self.entries.is_empty() {
            self.moved = None;
            return now;
        }
        if now < before.given {
            // From here on the log's time advances with the given one again.
            self.moved = Some(Moved { at, given: now });
        }
        at
    }

    fn judge(&self, at: Micros, id: EntryId, cost: u64, most: u64) -> LogDecision {
        // A sum that overflows exceeds every limit. Therefore subtractions of ended entries cannot underflow.
        let passes = self.holds(id) || self.used.checked_add(cost).is_some_and(|used| used <= most);
        let outcome = if passes {
            Outcome::Allowed
        } else {
            Outcome::Denied { retry_after_us: self.wait_us(at, cost, most) }
        };
        LogDecision { outcome, at, used: self.used, reset_us: self.reset_us(at) }
    }

    /// Time until enough entries will have ended for `cost`.
    fn wait_us(&self, at: Micros, cost: u64, most: u64) -> Option<u64> {
        let mut missing = self.used.saturating_sub(most.checked_sub(cost)?);
        if self.each_costs_one() {
            let last =
                usize::try_from(missing.saturating_sub(1)).ok().and_then(|place| self.entries.get(place));
            return Some(last.map_or(0, |entry| self.left_us(at, entry.at)));
        }
        let mut wait = 0;
        for entry in self.entries.iter().take(MAX_SCAN) {
            wait = self.left_us(at, entry.at);
            missing = missing.saturating_sub(entry.cost);
            if missing == 0 {
                break;
            }
        }
        Some(wait)
    }

    /// If so, entries can be counted instead of summed.
    fn each_costs_one(&self) -> bool {
        u64::try_from(self.entries.len()) == Ok(self.used)
    }

    fn reset_us(&self, at: Micros) -> u64 {
        self.entries.front().map_or(0, |entry| self.left_us(at, entry.at))
    }

    fn left_us(&self, at: Micros, entry: Micros) -> u64 {
        entry.0.saturating_add(self.window_us).saturating_sub(at.0)
    }
}
