//! Reservations: costs that are reserved before they are known, and settled once.
//!
//! A reservation is a deferred cost of the limiter, as that of a filter's request whose response states its cost. It belongs to this
//! aggregator's memory: what is reserved is no use yet, and no other node reads it.

use super::check::{Answer, LimitCheck};
use super::controlled::Controlled;
use super::reservations::{
    Begun, Booking, MAX_RESERVED_CHECKS, ReservationName, ReserveError, Reserved, SettleError, Settlement,
};
use super::windows::{Reserves, Windows};
use super::{EmbeddedApi, EmbeddedLimiter};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, error};
use weir_core::model::exact::{Algorithm, ChargeResult};

/// How much longer than its lifetime the limiter holds a reservation, which the table here ends in time. More than a decision takes.
const HELD_BEYOND_MS: u32 = 60_000;

impl EmbeddedLimiter {
    /// Reserves the costs of all checks, or of none, within the given time. A cost above its limit reserves the limit, so an estimate
    /// that is too high makes no request impossible.
    ///
    /// Repeating a reservation that passed has the same answer and reserves nothing further. One that was denied is decided again.
    pub async fn reserve(
        &self,
        name: ReservationName,
        booking: Booking,
        within: Duration,
    ) -> Result<Reserved, ReserveError> {
        let deadline = Instant::now() + within;
        let is_valid = (1..=MAX_RESERVED_CHECKS).contains(&booking.checks.len());
        if !is_valid || !booking.checks.iter().all(may_be_reserved) {
            return Ok(self.api.unreserved(Answer::undecided(booking.checks.len())));
        }
        loop {
            let begun = self.api.with_engine(|engine, _| engine.reservations.begin(&name, &booking))?;
            match begun {
                Begun::Made(reserved) => return Ok(reserved),
                Begun::Deciding(mut decided) => {
                    // It never changes; it ends.
                    if timeout_at(deadline, decided.changed()).await.is_err() {
                        return Ok(self.api.unreserved(Answer::undecided(booking.checks.len())));
                    }
                }
                Begun::New(decided) => {
                    let (api, checks) = (self.api.clone(), booking.checks.len());
                    // In a task of its own: if the caller disconnects and repeats the request, it finds this answer.
                    let deciding = async move {
                        let _decided = decided;
                        let undecided = Undecided { api: &api, name: &name };
                        undecided.api.reserve(undecided.name, &booking, deadline).await
                    };
                    let reserved = tokio::spawn(deciding.in_current_span()).await;
                    return Ok(reserved.unwrap_or_else(|error| {
                        error!(%error, "deciding a reservation failed");
                        self.api.unreserved(Answer::undecided(checks))
                    }));
                }
            }
        }
    }

    /// The checks of a reservation that is open or has ended lately.
    pub fn reserved_checks(&self, name: &ReservationName) -> Option<Vec<LimitCheck>> {
        self.api.with_engine(|engine, _| engine.reservations.checks(name).map(<[LimitCheck]>::to_vec))
    }

    /// Settles a reservation: of each check the cost, in order. What is reserved beyond it is returned; what exceeds it is charged in full,
    /// even beyond the limit. Settling again with the same costs changes nothing.
    pub fn settle(&self, name: &ReservationName, costs: &[u64]) -> Result<(), SettleError> {
        self.api.with_engine(|engine, now| {
            // A reservation whose lifetime is over is not settled, also if no tick has ended it yet.
            engine.end_expired(now);
            let Some(Settlement { request, places }) = engine.reservations.settle(name, costs, now)? else {
                return Ok(());
            };
            let cost_at = |place: &usize| costs.get(*place).copied().unwrap_or(0);
            let cost_of = |window: u16, reserve| match places.get(usize::from(window)) {
                Some(places) => places.iter().map(cost_at).fold(0, u64::saturating_add),
                None => reserve,
            };
            engine.settle(request, cost_of, now);
            Ok(())
        })
    }
}

/// Windows alone can reserve. A hard limit is one that no settlement may exceed.
fn may_be_reserved(check: &LimitCheck) -> bool {
    check.algorithm == Algorithm::Window && !check.hard_limit && check.validate().is_ok()
}

/// Drops the reservation that is being decided, unless it was opened.
struct Undecided<'a> {
    api: &'a Arc<EmbeddedApi>,
    name: &'a ReservationName,
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        self.api.engine.lock().reservations.drop_undecided(self.name);
    }
}

impl EmbeddedApi {
    async fn reserve(&self, name: &ReservationName, booking: &Booking, deadline: Instant) -> Reserved {
        let (services, checks) = (&self.services, &booking.checks);
        if !services.control.is_read_by(deadline).await {
            return self.unreserved(Answer::undecided(checks.len()));
        }
        let controlled = {
            let book = services.control.book();
            Controlled::of(checks, book.controls(), services.now())
        };
        let request = self.engine.lock().number();
        let open = |answer: Answer, places| {
            let (at, now) = (services.now(), self.mono());
            let reserved = Reserved { answer, at, expires: Some(at.after(booking.lifetime_ms.into())) };
            let settlement = Settlement { request, places };
            self.engine.lock().reservations.open(name, reserved.clone(), settlement, now);
            reserved
        };
        if let Some(answer) = controlled.answer() {
            return if answer.allowed { open(answer, Vec::new()) } else { self.unreserved(answer) };
        }
        if !services.serves() {
            return self.unreserved(Answer::undecided(checks.len()));
        }
        let held_ms = booking.lifetime_ms.saturating_add(HELD_BEYOND_MS);
        let mut windows = Windows::reserving(Reserves { request, held_ms });
        for (place, (check, counted)) in controlled.checks.iter().zip(&controlled.counted).enumerate() {
            if windows.add(check, *counted, place).is_err() {
                return self.unreserved(Answer::undecided(checks.len()));
            }
        }
        let (allowed, decided) = self.decide_windows(&windows, deadline).await;
        let mut results = vec![ChargeResult::UNDECIDED; controlled.checks.len()];
        windows.put(decided, &mut results);
        let places = windows.places(|left| controlled.place(left));
        let answer = controlled.complete(Answer { allowed, results });
        if allowed { open(answer, places) } else { self.unreserved(answer) }
    }

    fn unreserved(&self, answer: Answer) -> Reserved {
        Reserved { answer, at: self.services.now(), expires: None }
    }
}
