//! The share of one proxy: its allotment, and the most that it may have spent since its last report.
//!
//! ```text
//!            report                 allotment            now        next report
//!   ────────────┼───────────────────────┼─────────────────┼──────────────┼──────
//!               ├── former: may be spent ┤
//!                                       ├ base, and refill ┤  refill      │
//!               ├──────────── unreported ─────────────────┤
//!               ├──────────────────────── reserved ───────────────────────┤
//! ```

use super::HORIZON_MS;
use super::allotment::{Allotment, FILL_MS, Report, portion};
use crate::model::time::MonoMs;

/// Longest time in which a paced bucket receives its tokens, if it receives one in that time.
const LONGEST_FILL_S: u64 = 10;

/// Tokens, in as many parts as a refill has milliseconds: a bucket of `n` tokens receives `n` parts in a millisecond.
type Parts = u128;
const PARTS: Parts = FILL_MS as Parts;

/// The share of one proxy in a division.
#[derive(Clone, Debug)]
pub struct Share {
    /// Whose proxy it is.
    owner: u64,
    /// The size of the present bucket.
    tokens: u64,
    /// The rate of a paced limit, in thousandths of a request a second.
    rate: u64,
    /// The most that the bucket held at `since`, by the last report or when it was allotted.
    base: Parts,
    since: MonoMs,
    reported: MonoMs,
    /// The most that was spent of former buckets since the last report.
    former: Parts,
    /// Requests between two reports, admitted or not: the last ones, or the average if that is more.
    demand: u64,
    /// When the present bucket was allotted.
    allotted: MonoMs,
    /// The stream has ended; what is reserved is so until this time.
    until: Option<MonoMs>,
}

impl Share {
    pub(super) fn new(owner: u64, demand: u64, now: MonoMs) -> Share {
        let (reported, allotted) = (MonoMs(0), MonoMs(0));
        Share {
            owner,
            tokens: 0,
            rate: 0,
            base: 0,
            since: now,
            reported,
            former: 0,
            demand,
            allotted,
            until: None,
        }
    }

    /// The share for a limit that is divided as a rate. Nothing is reserved of such a limit.
    pub(super) fn to_paced(&self, now: MonoMs) -> Share {
        let rate = self.rate;
        Share { rate, ..Share::new(self.owner, self.demand, now) }
    }

    /// The share for a limit that is divided in amounts. What may have been spent at a rate since the last report is reserved.
    pub(super) fn to_divided(&self, now: MonoMs) -> Share {
        if self.rate == 0 {
            return self.clone();
        }
        let burst = Parts::from(self.rate.div_ceil(1_000)).saturating_mul(PARTS);
        let elapsed_ms = Parts::from(now.since(self.since));
        let spent = Parts::from(self.rate).saturating_mul(elapsed_ms).saturating_mul(PARTS) / 1_000_000;
        Share { former: self.former.saturating_add(burst).saturating_add(spent), rate: 0, ..self.clone() }
    }

    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    pub(super) fn demand(&self) -> u64 {
        self.demand
    }

    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    pub(super) fn allotted(&self) -> MonoMs {
        self.allotted
    }

    pub(super) fn is_connected(&self) -> bool {
        self.until.is_none()
    }

    pub(super) fn leave(&mut self, until: MonoMs) {
        self.until = Some(until);
    }

    /// Whether its last report is no older than this.
    pub(super) fn has_reported(&self, within_ms: u64, now: MonoMs) -> bool {
        now.since(self.reported) <= within_ms
    }

    pub(super) fn has_expired(&self, now: MonoMs) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    pub(super) fn allotment(&self) -> Allotment {
        match (self.tokens, self.rate) {
            (0, 0) => Allotment::Nothing,
            (0, rate) => paced(rate),
            (tokens, _) => Allotment::Tokens(tokens),
        }
    }

    /// The most that may have been spent since the last report. What is in the bucket may be spent before another one arrives.
    pub(super) fn unreported(&self, now: MonoMs) -> u64 {
        self.spent_within(now.since(self.since))
    }

    /// The same, by the time of the next report, or of one that has left until its allotment expires.
    pub(super) fn reserved(&self, now: MonoMs) -> u64 {
        match self.until {
            Some(until) => self.spent_within(until.since(self.since)),
            None => self.spent_within(now.since(self.since).max(HORIZON_MS)),
        }
    }

    fn spent_within(&self, ms: u64) -> u64 {
        whole(self.parts_within(ms))
    }

    fn parts_within(&self, ms: u64) -> Parts {
        let refilled = Parts::from(self.tokens).saturating_mul(ms.into());
        self.former.saturating_add(self.base).saturating_add(refilled)
    }

    fn size(&self) -> Parts {
        Parts::from(self.tokens).saturating_mul(PARTS)
    }

    pub(super) fn report(&mut self, Report { allowed, denied, .. }: Report, now: MonoMs) {
        // The former buckets are gone, so what is left is in the present one.
        let unreported = self.parts_within(now.since(self.since));
        self.base = unreported.saturating_sub(Parts::from(allowed).saturating_mul(PARTS)).min(self.size());
        self.former = 0;
        (self.since, self.reported) = (now, now);
        let requests = allowed.saturating_add(denied);
        self.demand = requests.max(self.demand.saturating_add(requests) / 2);
    }

    /// Allots another bucket, if the present one does not serve. From the new one at most `fair` can be spent until the next report, of what
    /// others leave `free`. Only a report (`reported`) shows what is left in a bucket. Without one it is replaced only if others have used what
    /// is reserved for it, and then by what is free beyond that.
    pub(super) fn allot(&mut self, fair: u64, free: u64, reported: bool, now: MonoMs) -> Option<Allotment> {
        let unreported = self.unreported(now);
        let tokens = bucket(if reported { fair } else { fair.min(free.saturating_sub(unreported)) });
        let is_replaced = if self.tokens == 0 {
            tokens > 0
        } else if reported {
            // All of it is in the present bucket.
            let is_small = tokens >= unreported.saturating_mul(2);
            let is_large = tokens > 0 && tokens < unreported / 2;
            is_small || is_large || self.reserved(now) > free
        } else {
            unreported > free
        };
        if !is_replaced {
            return None;
        }
        // A part of a token cannot be spent, and is gone with its bucket.
        self.former = Parts::from(self.unreported(now)).saturating_mul(PARTS);
        self.tokens = tokens;
        (self.base, self.since, self.allotted) = (self.size(), now, now);
        Some(self.allotment())
    }

    /// Sets the rate, in thousandths of a request a second, unless it changes little.
    pub(super) fn pace(&mut self, rate: u64, now: MonoMs) -> Option<Allotment> {
        let before = self.allotment();
        if rate.abs_diff(self.rate) <= self.rate / 16 && (rate > 0) == (self.rate > 0) {
            return None;
        }
        (self.rate, self.allotted) = (rate, now);
        Some(self.allotment()).filter(|allotment| *allotment != before)
    }
}

/// The largest bucket from which at most `most` can be spent until the next report.
fn bucket(most: u64) -> u64 {
    let tokens = portion(most, FILL_MS, FILL_MS.saturating_add(HORIZON_MS));
    if tokens == 0 { most.min(1) } else { tokens }
}

fn whole(parts: Parts) -> u64 {
    u64::try_from(parts.checked_div(PARTS).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The rate as whole tokens in whole seconds: the first of those not above it that is within a twentieth, else the highest.
fn paced(rate: u64) -> Allotment {
    let reached = |seconds: u64| {
        let tokens = rate.saturating_mul(seconds) / 1_000;
        (tokens.saturating_mul(1_000).checked_div(seconds).unwrap_or(0), tokens, seconds)
    };
    let tried = (1..=LONGEST_FILL_S).map(reached);
    let near = tried.clone().find(|(reached, ..)| reached.saturating_mul(20) >= rate.saturating_mul(19));
    match near.or_else(|| tried.max_by_key(|(reached, ..)| *reached)) {
        Some((_, tokens @ 1.., seconds)) => Allotment::Rate { tokens, seconds },
        _ => Allotment::Rate { tokens: 1, seconds: 1_000_u64.div_ceil(rate.max(1)) },
    }
}
