//! The reservations of applications: which are open, and how those that ended were settled.
//!
//! What a reservation holds is a deferred cost of the limiter; this table has its name, and what is answered if a request comes
//! again. One that ended stays for [`KEPT_MS`], so that a repeated request has the same answer, unless others of its workspace
//! need its room before.

use super::check::{Answer, LimitCheck};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio::sync::watch;
use weir_core::limiter::MAX_DEFERRED_REQUESTS;
use weir_core::model::key::Namespace;
use weir_core::model::room::ByNamespace;
use weir_core::model::time::{MonoMs, UnixMs};

/// Most open reservations, and most that ended. The limiter has room for as many, and divides it in the same way or by more.
pub const MAX_RESERVATIONS: usize = MAX_DEFERRED_REQUESTS;
/// Most checks of a reservation.
pub const MAX_RESERVED_CHECKS: usize = 8;
/// How long one that ended stays.
pub const KEPT_MS: u64 = 600_000;

/// The name of a reservation, which the application chooses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationName {
    /// Its workspace.
    pub workspace: Vec<u8>,
    /// Its id in the workspace.
    pub id: Vec<u8>,
}

/// What is to be reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The checks, at least one, of windows alone; all pass and are reserved, or none is.
    pub checks: Vec<LimitCheck>,
    /// How long the reservation waits for its settlement.
    pub lifetime_ms: u32,
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The decisions. Nothing is reserved unless all pass.
    pub answer: Answer,
    /// When it was decided.
    pub at: UnixMs,
    /// When what is reserved counts as used, if something is.
    pub expires: Option<UnixMs>,
}

/// Why nothing is reserved, although no limit denies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Another reservation has this name.
    #[error(
        "this id names a reservation of other checks or of another lifetime; use a new id for each reservation"
    )]
    Differs,
    /// It was made before, and has expired.
    #[error("this reservation has expired, and what it reserved is charged; use a new id")]
    Expired,
    /// There are too many.
    #[error("too many reservations are open in this workspace or in all; settle some, or let them expire")]
    Full,
}

/// Why a reservation is not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// There is none of this name.
    #[error(
        "there is no such reservation here: it was denied, it ended some time ago, or another aggregator or an earlier start of \
         this one made it; nothing is charged by this request"
    )]
    Unknown,
    /// It is not decided yet.
    #[error("this reservation is not decided yet; settle it once it is answered")]
    Deciding,
    /// It has expired.
    #[error(
        "this reservation has expired, and what it reserved is charged; nothing more is charged by this request"
    )]
    Expired,
    /// It was settled with other costs.
    #[error("this reservation is settled with another cost, which stays charged")]
    Settled,
    /// It has another number of checks.
    #[error("this reservation has {0} checks")]
    Checks(usize),
}

/// Where the costs of a settlement are charged: of each window of the limiter the places of its checks.
pub(super) type Places = Vec<Vec<usize>>;

/// What the table does with a request for a reservation.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is new: it is to be decided, and then opened or dropped. It has been decided once the sender is gone.
    New(watch::Sender<()>),
    /// Another request of the same name and content is being decided.
    Deciding(watch::Receiver<()>),
    /// It was made before, with this answer.
    Made(Reserved),
}

/// What is to be settled in the limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settlement {
    /// The request's number there.
    pub request: u64,
    /// Where its costs are charged.
    pub places: Places,
}

#[derive(Debug)]
struct Record {
    booking: Booking,
    state: State,
}

#[derive(Debug)]
enum State {
    Deciding(watch::Receiver<()>),
    Open {
        reserved: Reserved,
        settlement: Settlement,
        until: MonoMs,
    },
    /// With what it was settled; without costs it has expired.
    Ended {
        reserved: Reserved,
        costs: Option<Vec<u64>>,
    },
}

/// All reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    records: HashMap<ReservationName, Record>,
    /// Those that are being decided or are open.
    open: ByNamespace,
    /// The open ones, by the end of their lifetime.
    due: BTreeSet<(MonoMs, ReservationName)>,
    ended: Ended,
}

/// The names of reservations that ended, in this order.
#[derive(Debug, Default)]
struct Ended {
    room: ByNamespace,
    number: u64,
    /// When each ended.
    all: BTreeMap<u64, (MonoMs, ReservationName)>,
    /// By workspace and namespace.
    of_parts: BTreeSet<(Vec<u8>, Vec<u8>, u64)>,
}

impl ReservationName {
    /// A namespace of its workspace.
    fn part<'a>(&'a self, name: &'a [u8]) -> Namespace<&'a [u8]> {
        Namespace { workspace: &self.workspace, name }
    }
}

impl Booking {
    /// The namespace whose room it takes.
    fn namespace(&self) -> &[u8] {
        self.checks.first().map_or(b"", |check| &check.namespace)
    }
}

impl Reservations {
    /// Begins a reservation, unless one of this name is there.
    pub(super) fn begin(&mut self, name: &ReservationName, booking: &Booking) -> Result<Begun, ReserveError> {
        if let Some(Record { booking: made, state }) = self.records.get(name) {
            return match state {
                _ if made != booking => Err(ReserveError::Differs),
                State::Deciding(decided) => Ok(Begun::Deciding(decided.clone())),
                State::Open { reserved, .. } | State::Ended { reserved, costs: Some(_) } => {
                    Ok(Begun::Made(reserved.clone()))
                }
                State::Ended { costs: None, .. } => Err(ReserveError::Expired),
            };
        }
        if !self.open.held(name.part(booking.namespace())).has_place(MAX_RESERVATIONS) {
            return Err(ReserveError::Full);
        }
        let (sender, decided) = watch::channel(());
        self.open.add(name.part(booking.namespace()), 1);
        let record = Record { booking: booking.clone(), state: State::Deciding(decided) };
        self.records.insert(name.clone(), record);
        Ok(Begun::New(sender))
    }

    /// Opens a reservation that has passed.
    pub(super) fn open(
        &mut self,
        name: &ReservationName,
        reserved: Reserved,
        settlement: Settlement,
        now: MonoMs,
    ) {
        let Some(record) = self.records.get_mut(name) else { return };
        let until = now.after(record.booking.lifetime_ms.into());
        record.state = State::Open { reserved, settlement, until };
        self.due.insert((until, name.clone()));
    }

    /// Drops a reservation that was not opened.
    pub(super) fn drop_undecided(&mut self, name: &ReservationName) {
        let is_deciding = |record: &Record| matches!(record.state, State::Deciding(_));
        if self.records.get(name).is_some_and(is_deciding)
            && let Some(record) = self.records.remove(name)
        {
            self.open.remove(name.part(record.booking.namespace()), 1);
        }
    }

    /// The checks of a reservation.
    pub(super) fn checks(&self, name: &ReservationName) -> Option<&[LimitCheck]> {
        self.records.get(name).map(|record| record.booking.checks.as_slice())
    }

    /// Settles a reservation, once. Returns what is to be settled in the limiter: nothing if it was settled with the same costs.
    pub(super) fn settle(
        &mut self,
        name: &ReservationName,
        costs: &[u64],
        now: MonoMs,
    ) -> Result<Option<Settlement>, SettleError> {
        let Some(Record { booking, state }) = self.records.get(name) else {
            return Err(SettleError::Unknown);
        };
        if booking.checks.len() != costs.len() {
            return Err(SettleError::Checks(booking.checks.len()));
        }
        match state {
            State::Deciding(_) => Err(SettleError::Deciding),
            State::Ended { costs: None, .. } => Err(SettleError::Expired),
            State::Ended { costs: Some(settled), .. } if settled == costs => Ok(None),
            State::Ended { .. } => Err(SettleError::Settled),
            State::Open { .. } => Ok(self.end(name, Some(costs.to_vec()), now)),
        }
    }

    /// The next reservation whose lifetime is over; its reserve is charged.
    pub(super) fn next_expired(&mut self, now: MonoMs) -> Option<Settlement> {
        let (until, name) = self.due.first()?;
        if *until > now {
            return None;
        }
        let name = name.clone();
        self.end(&name, None, now)
    }

    /// Drops those that ended long ago.
    pub(super) fn drop_old(&mut self, now: MonoMs) {
        while let Some((number, (at, name))) = self.ended.all.first_key_value()
            && now.since(*at) >= KEPT_MS
        {
            let (number, name) = (*number, name.clone());
            self.drop_ended(number, &name);
        }
    }

    /// Ends an open reservation.
    fn end(&mut self, name: &ReservationName, costs: Option<Vec<u64>>, now: MonoMs) -> Option<Settlement> {
        let Record { booking, state } = self.records.remove(name)?;
        let State::Open { reserved, settlement, until } = state else { return None };
        let namespace = booking.namespace();
        self.due.remove(&(until, name.clone()));
        self.open.remove(name.part(namespace), 1);
        while !self.ended.room.held(name.part(namespace)).has_place(MAX_RESERVATIONS) {
            let Some((number, oldest)) = self.ended.oldest_of(&name.workspace, namespace) else {
                return Some(settlement);
            };
            self.drop_ended(number, &oldest);
        }
        self.ended.add(name, namespace, now);
        let state = State::Ended { reserved, costs };
        self.records.insert(name.clone(), Record { booking, state });
        Some(settlement)
    }

    fn drop_ended(&mut self, number: u64, name: &ReservationName) {
        let namespace = self.records.remove(name).map(|record| record.booking.namespace().to_vec());
        self.ended.remove(number, name, namespace.as_deref().unwrap_or_default());
    }
}

impl Ended {
    fn add(&mut self, name: &ReservationName, namespace: &[u8], now: MonoMs) {
        self.number = self.number.saturating_add(1);
        self.room.add(name.part(namespace), 1);
        self.all.insert(self.number, (now, name.clone()));
        self.of_parts.insert((name.workspace.clone(), namespace.to_vec(), self.number));
    }

    fn remove(&mut self, number: u64, name: &ReservationName, namespace: &[u8]) {
        self.all.remove(&number);
        self.of_parts.remove(&(name.workspace.clone(), namespace.to_vec(), number));
        self.room.remove(name.part(namespace), 1);
    }

    /// The oldest one of a namespace, or if it has none of its workspace's first namespace.
    fn oldest_of(&self, workspace: &[u8], namespace: &[u8]) -> Option<(u64, ReservationName)> {
        let first = |namespace: &[u8]| {
            let from = (workspace.to_vec(), namespace.to_vec(), 0);
            self.of_parts.range(from..).next().filter(|(of, ..)| of == workspace)
        };
        let own = first(namespace).filter(|(_, of, _)| of == namespace);
        let (.., number) = own.or_else(|| first(b""))?;
        let (_, name) = self.all.get(number)?;
        Some((*number, name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::exact::Algorithm;

    const LIFETIME_MS: u32 = 60_000;

    fn name(workspace: &str, id: u64) -> ReservationName {
        ReservationName { workspace: workspace.into(), id: id.to_be_bytes().into() }
    }

    fn booking(namespace: &str) -> Booking {
        let check = LimitCheck {
            algorithm: Algorithm::Window,
            workspace: b"w".to_vec(),
            namespace: namespace.into(),
            identifier: b"i".to_vec(),
            duration_ms: 60_000,
            hard_limit: false,
            limit: 10,
            cost: 1,
        };
        Booking { checks: vec![check], lifetime_ms: LIFETIME_MS }
    }

    fn answer() -> Reserved {
        Reserved { answer: Answer { allowed: true, results: Vec::new() }, at: UnixMs(1), expires: None }
    }

    /// Opens a reservation; false if there is no room.
    fn open(all: &mut Reservations, name: &ReservationName, namespace: &str, now: u64) -> bool {
        let begun = all.begin(name, &booking(namespace));
        let settlement = Settlement { request: now, places: Vec::new() };
        all.open(name, answer(), settlement, MonoMs(now));
        begun.is_ok()
    }

    #[test]
    fn each_expires_at_its_own_time_and_is_settled_no_more() {
        let mut all = Reservations::default();
        assert!(open(&mut all, &name("w", 1), "n", 5) && open(&mut all, &name("w", 2), "n", 3));
        let later = |ms: u64| MonoMs(u64::from(LIFETIME_MS) + ms);
        assert_eq!(all.next_expired(later(2)), None);
        assert_eq!(all.next_expired(later(4)).map(|expired| expired.request), Some(3));
        assert_eq!(all.next_expired(later(4)), None);
        assert_eq!(all.settle(&name("w", 2), &[1], later(4)), Err(SettleError::Expired));
        assert_eq!(all.begin(&name("w", 2), &booking("n")).unwrap_err(), ReserveError::Expired);
        assert!(all.settle(&name("w", 1), &[1], later(4)).unwrap().is_some());
        assert_eq!(all.next_expired(later(99)), None, "a settled one does not expire");
    }

    #[test]
    fn those_that_ended_are_kept_for_a_time_and_leave_no_trace() {
        let mut all = Reservations::default();
        assert!(open(&mut all, &name("w", 1), "n", 5));
        assert!(all.settle(&name("w", 1), &[7], MonoMs(10)).unwrap().is_some());
        all.drop_old(MonoMs(9 + KEPT_MS));
        assert_eq!(all.settle(&name("w", 1), &[7], MonoMs(20)), Ok(None));
        all.drop_old(MonoMs(10 + KEPT_MS));
        assert_eq!(all.settle(&name("w", 1), &[7], MonoMs(20)), Err(SettleError::Unknown));
        let begun = all.begin(&name("w", 2), &booking("n"));
        assert!(matches!(begun, Ok(Begun::New(_))));
        all.drop_undecided(&name("w", 2));
        all.drop_undecided(&name("w", 2));
        assert!(all.records.is_empty() && all.due.is_empty() && all.ended.of_parts.is_empty());
        assert_eq!((all.open.taken(), all.ended.room.taken()), (0, 0));
    }

    #[test]
    fn where_many_end_the_oldest_of_the_same_workspace_makes_room() {
        let mut all = Reservations::default();
        let mut end = |workspace: &str, namespace: &str, id: u64| {
            assert!(open(&mut all, &name(workspace, id), namespace, id), "{workspace} {id}");
            assert!(all.settle(&name(workspace, id), &[1], MonoMs(id)).unwrap().is_some());
        };
        end("other", "n", 0);
        let most = MAX_RESERVATIONS as u64;
        (1..=most).for_each(|id| end("w", "n", id));
        (most + 1..most + 10).for_each(|id| end("w", "another", id));
        let is_known = |workspace, id| all.checks(&name(workspace, id)).is_some();
        assert!(is_known("other", 0) && is_known("w", most + 9) && !is_known("w", 1));
        assert_eq!(all.records.len(), all.ended.room.taken());
        assert!(all.records.len() < MAX_RESERVATIONS && all.open.taken() == 0);
    }

    #[test]
    fn a_workspace_leaves_room_to_others() {
        let mut all = Reservations::default();
        let held = (0..).take_while(|id| open(&mut all, &name("w", *id), "n", 1)).count();
        assert!((MAX_RESERVATIONS / 2..MAX_RESERVATIONS * 3 / 4).contains(&held), "{held}");
        assert!(open(&mut all, &name("other", 1), "n", 1));
        assert!(all.settle(&name("w", 0), &[1], MonoMs(2)).is_ok());
        assert!(open(&mut all, &name("w", held as u64 + 1), "n", 1));
    }
}
