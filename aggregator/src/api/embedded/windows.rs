//! The windows of one call: the limiter's checks for them, and its outcomes as decisions.

use super::check::{LimitCheck, LimitCheckError};
use super::controlled::Counted;
use super::engine::{Engine, Taken};
use super::{EmbeddedApi, LONGEST_RESERVED_PAUSE, RESERVED_PAUSE};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};
use weir_core::limiter::{Budget, Cause, Check, Decision, Denial, Outcome, Policy};
use weir_core::model::exact::{Algorithm, ChargeResult, Verdict};
use weir_core::model::key::MAX_KEY_BYTES;
use weir_core::model::time::MonoMs;

/// One window of a call. Checks with the same key are one window.
pub(super) struct Window {
    key: Vec<u8>,
    cell_ms: u64,
    duration_ms: u64,
    limit: u64,
    /// The limit without live control, if live control sets `limit`.
    configured: Option<u64>,
    cost: u64,
    /// Until the cost is settled, it is reserved for so long; 0: it is charged.
    reserved_ms: u32,
    /// Positions of its checks in the call.
    places: Vec<usize>,
}

/// All windows of a call, in order.
#[derive(Default)]
pub(super) struct Windows {
    all: Vec<Window>,
    /// Of a reservation.
    reserves: Option<Reserves>,
}

/// The reservation that windows are decided for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserves {
    /// Its number in the limiter.
    pub request: u64,
    /// How long the limiter holds it; at least its lifetime.
    pub held_ms: u32,
}

/// The limiter's immediate result.
pub(super) enum Attempt {
    /// Decided, with the decisions.
    Decided(bool, Vec<ChargeResult>),
    /// The rest of the budget is reserved by others for a moment.
    Reserved(Vec<ChargeResult>),
    /// A query was sent to the region.
    Wait(oneshot::Receiver<Outcome>),
}

impl Window {
    /// The window of the check at position `place`, with the limit that applies.
    pub(super) fn of(check: &LimitCheck, counted: Counted, place: usize) -> Result<Window, LimitCheckError> {
        let mut key = Vec::with_capacity(MAX_KEY_BYTES);
        let parts = check.parts(counted.epoch);
        parts.encode(&mut key)?;
        let LimitCheck { duration_ms, limit, cost, .. } = *check;
        let (cell_ms, configured, places) = (parts.cell_ms(), counted.configured, vec![place]);
        Ok(Window { key, cell_ms, duration_ms, limit, configured, cost, reserved_ms: 0, places })
    }

    pub(super) fn check(&self, rule: usize, timeout_ms: u32) -> Check<'_> {
        let reserves = self.reserved_ms > 0;
        // An estimate makes no request impossible: it reserves the limit at most.
        let cost = if reserves { self.cost.min(self.limit.max(1)) } else { self.cost };
        Check {
            algorithm: Algorithm::Window,
            rule: u16::try_from(rule).unwrap_or(u16::MAX),
            key: &self.key,
            cell_ms: self.cell_ms,
            limit: self.limit,
            configured: self.configured,
            cost,
            policy: Policy {
                timeout_ms,
                settles_within_ms: self.reserved_ms,
                settles_at_most: if reserves { cost } else { 0 },
                estimates: reserves,
                ..Policy::default()
            },
        }
    }

    fn refused(&self, engine: &mut Engine, denial: &Denial, now: MonoMs) -> Verdict {
        Verdict::Denied { retry_after_ms: engine.denied_for_ms(&self.check(0, 0), denial, now) }
    }

    fn result(&self, verdict: Verdict, budget: &Budget) -> ChargeResult {
        ChargeResult {
            verdict,
            limit: budget.limit,
            remaining: budget.remaining,
            reset_ms: budget.reset_ms,
            window_ms: self.duration_ms,
            transaction: None,
        }
    }
}

impl Windows {
    /// Windows whose costs are reserved.
    pub(super) fn reserving(reserves: Reserves) -> Windows {
        Windows { all: Vec::new(), reserves: Some(reserves) }
    }

    /// The positions of each window's checks in the call; `place` is the position of one that was left to decide.
    pub(super) fn places(&self, place: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
        self.all.iter().map(|window| window.places.iter().map(|at| place(*at)).collect()).collect()
    }

    /// Adds the window of the check at position `place`. Checks of the same window count as one: the sum of their costs
    /// against the lowest of their limits.
    pub(super) fn add(
        &mut self,
        check: &LimitCheck,
        counted: Counted,
        place: usize,
    ) -> Result<(), LimitCheckError> {
        let reserved_ms = self.reserves.map_or(0, |reserves| reserves.held_ms);
        let window = Window { reserved_ms, ..Window::of(check, counted, place)? };
        match self.all.iter_mut().find(|other| other.key == window.key) {
            Some(same) => {
                same.cost = same.cost.saturating_add(window.cost);
                if window.limit < same.limit {
                    (same.limit, same.configured) = (window.limit, window.configured);
                }
                same.places.push(place);
            }
            None => self.all.push(window),
        }
        Ok(())
    }

    /// Copies the decisions on these windows to their positions in the call.
    pub(super) fn put(&self, results: Vec<ChargeResult>, all: &mut [ChargeResult]) {
        for (window, result) in self.all.iter().zip(results) {
            window.places.iter().for_each(|place| all[*place] = result);
        }
    }

    /// Lets the limiter decide. What was given back is used up first, but not by a reservation: its cost is not known yet.
    fn decide(&self, engine: &mut Engine, timeout_ms: u32, now: MonoMs) -> Attempt {
        if let Some(Reserves { request, .. }) = self.reserves {
            let windows = self.all.iter().enumerate();
            let checks: Vec<Check<'_>> =
                windows.map(|(rule, window)| window.check(rule, timeout_ms)).collect();
            let decided = engine.decide(request, &checks, Vec::new(), now);
            return self.tried(engine, decided, now);
        }
        let taken: Vec<Taken> =
            self.all.iter().map(|window| engine.take_given(&window.check(0, 0), now)).collect();
        let windows = self.all.iter().zip(&taken).enumerate();
        let checks = windows.map(|(rule, (window, taken))| {
            let check = window.check(rule, timeout_ms);
            Check { cost: check.cost.saturating_sub(taken.hits), ..check }
        });
        let mut checks: Vec<Check<'_>> = checks.collect();
        let mut given = self.all.iter().zip(&taken);
        checks.retain(|_| {
            let next = given.next();
            next.is_none_or(|(window, taken)| !engine.is_made_up_for(&window.check(0, 0), taken, now))
        });
        if checks.is_empty() {
            return Attempt::Decided(true, self.allowed(engine, None, now));
        }
        let request = engine.number();
        let decided = engine.decide(request, &checks, taken, now);
        self.tried(engine, decided, now)
    }

    fn tried(
        &self,
        engine: &mut Engine,
        decided: Result<Outcome, oneshot::Receiver<Outcome>>,
        now: MonoMs,
    ) -> Attempt {
        match decided {
            Ok(outcome) => self.attempt(engine, &outcome, now),
            Err(receiver) => Attempt::Wait(receiver),
        }
    }

    fn attempt(&self, engine: &mut Engine, outcome: &Outcome, now: MonoMs) -> Attempt {
        match &outcome.decision {
            Decision::Deny(denial) if denial.cause == Cause::Reserved => {
                Attempt::Reserved(self.denied(engine, denial, now))
            }
            Decision::Deny(denial) => Attempt::Decided(false, self.denied(engine, denial, now)),
            Decision::Allow(budget) => Attempt::Decided(true, self.allowed(engine, budget.as_ref(), now)),
            // A resolved request is never in this state.
            Decision::Wait => Attempt::Decided(false, vec![ChargeResult::UNDECIDED; self.all.len()]),
        }
    }

    fn allowed(&self, engine: &mut Engine, budget: Option<&Budget>, now: MonoMs) -> Vec<ChargeResult> {
        if let ([only], Some(budget)) = (self.all.as_slice(), budget) {
            return vec![only.result(Verdict::Allowed, &engine.with_given(&only.check(0, 0), *budget, now))];
        }
        let left = |window: &Window| {
            let budget = match engine.peek_with_given(&Check { cost: 0, ..window.check(0, 0) }, now) {
                Ok(budget) => budget,
                Err(denial) => denial.budget,
            };
            window.result(Verdict::Allowed, &budget)
        };
        self.all.iter().map(left).collect()
    }

    /// Marks as denied the window that `denial` names, and each other window that would have been denied by itself.
    fn denied(&self, engine: &mut Engine, denial: &Denial, now: MonoMs) -> Vec<ChargeResult> {
        let ruled = |(rule, window): (usize, &Window)| {
            if usize::from(denial.budget.rule) == rule {
                let budget = engine.with_given(&window.check(rule, 0), denial.budget, now);
                return window.result(window.refused(engine, denial, now), &budget);
            }
            match engine.peek_with_given(&window.check(rule, 0), now) {
                Err(other) if is_final(&other) => {
                    window.result(window.refused(engine, &other, now), &other.budget)
                }
                Err(Denial { budget, .. }) | Ok(budget) => window.result(Verdict::Untried, &budget),
            }
        };
        self.all.iter().enumerate().map(ruled).collect()
    }
}

impl EmbeddedApi {
    /// Decides windows, at most a moment longer than the deadline.
    pub(super) async fn decide_windows(
        &self,
        windows: &Windows,
        deadline: Instant,
    ) -> (bool, Vec<ChargeResult>) {
        let mut pause = RESERVED_PAUSE;
        loop {
            // Behind the lock: a wait for it may not move the limiter's deadline beyond this call's.
            let attempt = self.with_engine(|engine, now| windows.decide(engine, ms_until(deadline), now));
            let attempt = match attempt {
                Attempt::Wait(receiver) => self.waited(windows, receiver, deadline).await,
                other => other,
            };
            match attempt {
                Attempt::Decided(allowed, results) => return (allowed, results),
                Attempt::Reserved(results) => {
                    let now = Instant::now();
                    if now + RESERVED_PAUSE >= deadline {
                        return (false, results);
                    }
                    sleep_until((now + pause).min(deadline - RESERVED_PAUSE)).await;
                    pause = (pause * 2).min(LONGEST_RESERVED_PAUSE);
                }
                Attempt::Wait(..) => return (false, vec![ChargeResult::UNDECIDED; windows.all.len()]),
            }
        }
    }

    /// The result of waiting for the region's answer or for the deadline.
    async fn waited(
        &self,
        windows: &Windows,
        mut receiver: oneshot::Receiver<Outcome>,
        deadline: Instant,
    ) -> Attempt {
        // The limiter counts in whole milliseconds.
        let late = deadline + Duration::from_millis(1);
        let outcome = match timeout_at(late, &mut receiver).await {
            Ok(outcome) => outcome.ok(),
            Err(_) => {
                // The task that should have ended the wait has not run in time.
                self.engine.lock().tick(self.now());
                receiver.try_recv().ok()
            }
        };
        match outcome {
            Some(outcome) => windows.attempt(&mut self.engine.lock(), &outcome, self.mono()),
            None => Attempt::Decided(false, vec![ChargeResult::UNDECIDED; windows.all.len()]),
        }
    }

    /// Whether the windows alone would let the call pass; if not, the decisions.
    pub(super) fn peek(&self, windows: &Windows) -> Result<(), Vec<ChargeResult>> {
        self.with_engine(|engine, now| {
            let mut looks = windows.all.iter().enumerate().map(|(rule, window)| window.check(rule, 0));
            let denial = looks.find_map(|check| engine.peek_with_given(&check, now).err().filter(is_final));
            denial.map_or(Ok(()), |denial| Err(windows.denied(engine, &denial, now)))
        })
    }

    /// The decisions on windows that were not tried, with what remains of each.
    pub(super) fn untried(&self, windows: &Windows) -> Vec<ChargeResult> {
        self.with_engine(|engine, now| {
            let peek = |window: &Window| {
                let (Ok(budget) | Err(Denial { budget, .. })) =
                    engine.peek_with_given(&window.check(0, 0), now);
                window.result(Verdict::Untried, &budget)
            };
            windows.all.iter().map(peek).collect()
        })
    }
}

/// A denial because of reservations is not final, as it may end in a moment.
fn is_final(denial: &Denial) -> bool {
    denial.cause != Cause::Reserved
}

fn ms_until(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}
