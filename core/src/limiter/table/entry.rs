//! One key of the table: the cells that a window touches, what is reserved in them, and how fresh all that is.
//!
//! Those are two for most keys. One whose window is cut finer has more of them, all that the entry is made with: they
//! stand in a list of their own, so that the others pay nothing for it.
//!
//! Leaves to others: its place among the bytes of a bucket (`bucket`), decisions (`limiter`).

use crate::model::time::{MonoMs, UnixMs};
use crate::model::window::{Counts, MAX_CELLS, MAX_COUNT, Position, Used};
use crate::model::wire;
use alloc::vec::Vec;

/// Most reservations on one key. Leases keep to the first eight, so that there is always room for the short-lived
/// ones; a reservation without room is refused, and its owner does without.
pub const MAX_RESERVATIONS: usize = 64;
/// Of these, how many may be leases.
pub const MAX_LEASES: usize = 8;
/// And how many may be of open requests, one for each worker that has some.
pub const MAX_OPEN: usize = 32;
/// A sequence more than so many windows ahead of now is no small step of the clock any more.
const MAX_AHEAD: u64 = 2;
/// A clock may step ahead by one part in this many of a cell, and by [`TOLERATED_MS`] at most, before the entry numbers its
/// cells anew: offsets are measured to a few milliseconds.
const TOLERATED_PART: u64 = 8;
const TOLERATED_MS: u64 = 1_000;
/// The largest step of a clock that leaves the cells of an entry where they are, in milliseconds, by the length of a cell.
pub fn tolerated_ms(cell_ms: u64) -> u64 {
    (cell_ms / TOLERATED_PART).min(TOLERATED_MS)
}
/// Most cells of an entry beside the current one and the one before.
pub const MAX_OLDER: usize = MAX_CELLS - 2;

/// What is known of one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Spent by this process; never falls. If the cell is unbased: only what was added since it was forgotten.
    pub own: u64,
    /// Spent by the other processes of the region.
    pub region_others: u64,
    /// Spent in other regions.
    pub global_others: u64,
    /// How much of `own` the region is known to hold.
    pub confirmed: u64,
    /// The process has forgotten its count in this cell and not yet been told the base.
    pub without_baseline: bool,
}

/// What a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// A worker spends it without asking the table.
    Lease,
    /// A request over several cells is being decided.
    Hold,
    /// A consult about it is under way.
    Consult,
    /// Requests of a worker are under way whose responses will tell their cost. As they may end in any cell, it moves on
    /// with the cells.
    Deferred,
}

/// Who reserved, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The worker, a random number below 2^62.
    pub worker: u64,
    /// What for.
    pub kind: ReservationKind,
}

/// Part of the budget that somebody may still spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// By whom.
    pub tag: Tag,
    /// In which cell.
    pub sequence: u64,
    /// How much.
    pub amount: u64,
    /// When its owner must be dead: from then on it counts as spent.
    pub expires: MonoMs,
}

/// One key's knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Keyed hash of the key.
    pub fingerprint: u64,
    /// The limit last applied; 0 if only others are known to use the key.
    pub limit: u64,
    /// A denial happened, so until then the local view alone is not trusted.
    pub strict_until: MonoMs,
    /// When this process last spent, or got the base of what it had spent: what it owns is in reports since then.
    pub charged: MonoMs,
    /// When the region's view last came; zero: never.
    pub viewed: MonoMs,
    /// How much used it is, for eviction.
    pub hits: u8,
    /// The region has refused to store it: it leaves last, and stays while it is past half its limit.
    pub unstored: bool,
    /// Sequence of `current`.
    pub sequence: u64,
    /// Unix time minus monotonic time in milliseconds by the clock that numbers the cells; `None` until it was used.
    pub clock: Option<u64>,
    /// The newest cell.
    pub current: Cell,
    /// The one before.
    pub previous: Cell,
    /// Those before that, newest first, where a window touches more than two: always as many, empty ones too.
    pub older: Vec<Cell>,
    /// What is reserved in any of them.
    pub reservations: Vec<Reservation>,
}

impl Entry {
    /// An entry in which nothing is known, in cell `sequence` of a key of this `resolution`.
    pub fn new(fingerprint: u64, resolution: u16, sequence: u64) -> Entry {
        let older = usize::from(resolution).saturating_sub(1).min(MAX_OLDER);
        Entry { fingerprint, sequence, older: alloc::vec![Cell::default(); older], ..Entry::default() }
    }

    /// As much of `limit` as may be spent without asking, all processes together. Where cells count in full a whole limit may
    /// come free at one moment, and what all spend before they hear of each other would go beyond what a hard limit promises:
    /// no more than one cell's part is.
    pub fn spared_at_once(&self, limit: u64) -> u64 {
        match self.before() {
            0 | 1 => u64::MAX,
            cells => limit.checked_div(cells).unwrap_or(0),
        }
    }

    /// Cells before the current one that a window touches: the key's resolution.
    pub fn before(&self) -> u64 {
        (self.older.len() as u64).saturating_add(1)
    }

    /// Length of a window in milliseconds, whose cells have `cell_ms`.
    pub fn window_ms(&self, cell_ms: u64) -> u64 {
        cell_ms.saturating_mul(self.before())
    }

    /// Brings the cells to `at`, and turns reservations of the dead into spent. Returns the moment as the entry's
    /// current cell sees it: its start, where the clock went back a little.
    ///
    /// Counts age by the monotonic clock alone, however the clock of `at` steps.
    pub fn advance(&mut self, at: &Position, now: MonoMs) -> Position {
        self.reap(now);
        self.follow_clock(at, now);
        self.roll_to(at.sequence);
        let seen = at.seen_from(self.sequence);
        if !self.reservations.is_empty() {
            self.carry_open(&seen, now);
            let oldest = self.sequence.saturating_sub(self.before());
            self.reservations.retain(|reservation| reservation.sequence >= oldest);
        }
        seen
    }

    /// Whether no window touches its cells any more, by the clock that numbers them.
    pub fn is_over(&self, at: &Position, now: MonoMs) -> bool {
        let expected = self.clock.map(|clock| Position::at(UnixMs(now.0.saturating_add(clock)), at.cell_ms));
        expected.unwrap_or(*at).sequence.saturating_sub(self.sequence) > self.before()
    }

    /// Whether more than half of its limit is used in its cells.
    pub fn is_hot(&self) -> bool {
        let used = self.cells().fold(0u64, |sum, (_, cell)| sum.saturating_add(cell.used()));
        used > self.limit / 2
    }

    /// What counts as used, reservations aside.
    pub fn used(&self) -> Used {
        if self.older.is_empty() {
            return Used::Average { current: self.current.used(), previous: self.previous.used() };
        }
        self.hard_limit(|_| 0)
    }

    /// What counts as used if everybody spends what is reserved.
    pub fn used_and_reserved(&self) -> Used {
        if self.older.is_empty() {
            let before = self.sequence.saturating_sub(1);
            return Used::Average {
                current: self.current.used().saturating_add(self.reserved_in(self.sequence)),
                previous: self.previous.used().saturating_add(self.reserved_in(before)),
            };
        }
        self.hard_limit(|sequence| self.reserved_in(sequence))
    }

    /// The cells that a window touches, from the current one back, each with its sequence.
    pub fn cells(&self) -> impl Iterator<Item = (u64, &Cell)> {
        let cells = [&self.current, &self.previous].into_iter().chain(&self.older);
        (0..=self.sequence).rev().zip(cells)
    }

    fn hard_limit(&self, reserved_in: impl Fn(u64) -> u64) -> Used {
        let counts = self.cells().map(|(sequence, cell)| cell.used().saturating_add(reserved_in(sequence)));
        Used::HardLimit(Counts::new(self.older.len().saturating_add(2), counts))
    }

    /// Sum of the reservations in cell `sequence`.
    pub fn reserved_in(&self, sequence: u64) -> u64 {
        let of_cell = self.reservations.iter().filter(|reservation| reservation.sequence == sequence);
        of_cell.fold(0, |sum: u64, reservation| sum.saturating_add(reservation.amount))
    }

    /// Spends `cost` in the current cell.
    pub fn charge(&mut self, cost: u64, now: MonoMs) {
        let sequence = self.sequence;
        self.charge_in(sequence, cost, now);
    }

    /// Spends `cost` in cell `sequence`, if a window still touches it.
    pub fn charge_in(&mut self, sequence: u64, cost: u64, now: MonoMs) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.own = cell.own.saturating_add(cost).min(MAX_COUNT);
            self.charged = now;
            self.hits = self.hits.saturating_add(1);
        }
    }

    /// The cell of `sequence`, if a window still touches it.
    pub fn cell(&self, sequence: u64) -> Option<&Cell> {
        match self.sequence.checked_sub(sequence)? {
            0 => Some(&self.current),
            1 => Some(&self.previous),
            back => self.older.get(usize::try_from(back).ok()?.checked_sub(2)?),
        }
    }

    /// Adds `amount` to the reservation of `tag` in the current cell; false if there is no room for another.
    pub fn reserve(&mut self, tag: Tag, amount: u64, expires: MonoMs) -> bool {
        let sequence = self.sequence;
        let same = |held: &&mut Reservation| held.tag == tag && held.sequence == sequence;
        if let Some(held) = self.reservations.iter_mut().find(same) {
            held.amount = held.amount.saturating_add(amount);
            held.expires = held.expires.max(expires);
            return true;
        }
        let most = match tag.kind {
            ReservationKind::Lease => MAX_LEASES,
            ReservationKind::Deferred => MAX_OPEN,
            ReservationKind::Hold | ReservationKind::Consult => MAX_RESERVATIONS,
        };
        let alike = self.reservations.iter().filter(|held| held.tag.kind == tag.kind).count();
        let full = self.reservations.len() >= MAX_RESERVATIONS || alike >= most;
        if !full {
            self.reservations.push(Reservation { tag, sequence, amount, expires });
        }
        !full
    }

    /// Takes back what `tag` reserved in cell `sequence`; `None` if it is no longer there (and so counts as spent).
    pub fn release(&mut self, tag: Tag, sequence: u64) -> Option<u64> {
        let at = self.reservations.iter().position(|held| held.tag == tag && held.sequence == sequence)?;
        Some(self.reservations.swap_remove(at).amount)
    }

    /// The same of the newest cell in which `tag` reserved anything, and its sequence.
    pub fn release_newest(&mut self, tag: Tag) -> Option<(u64, u64)> {
        let held = self.reservations.iter().filter(|held| held.tag == tag);
        let sequence = held.map(|held| held.sequence).max()?;
        self.release(tag, sequence).map(|amount| (sequence, amount))
    }

    /// Takes back `amount` of what `tag` reserved, in whatever cell; returns how much of it was still there. The rest counts
    /// as spent.
    pub fn release_part(&mut self, tag: Tag, amount: u64) -> u64 {
        let Some(at) = self.reservations.iter().position(|held| held.tag == tag) else { return 0 };
        let Some(held) = self.reservations.get_mut(at) else { return 0 };
        let taken = held.amount.min(amount);
        held.amount = held.amount.saturating_sub(taken);
        if held.amount == 0 {
            self.reservations.swap_remove(at);
        }
        taken
    }

    /// Whether requests are open on it that a living worker will settle.
    pub fn is_deferred(&self, now: MonoMs) -> bool {
        let open = |held: &Reservation| held.tag.kind == ReservationKind::Deferred && held.expires > now;
        self.reservations.iter().any(open)
    }

    /// Merges what the region knows. Everything grows by max; an unbased cell gets its base, once, where the view
    /// `sends_baseline`: it answers a question or a report without one, and is all that the region holds of this process. True if
    /// it changed anything but the time.
    pub fn merge(&mut self, snapshot: &wire::Snapshot, sends_baseline: bool, now: MonoMs) -> bool {
        self.viewed = now;
        let Some(cell) = self.cell_mut(snapshot.sequence) else { return false };
        let before = *cell;
        let bounded = |count: u64| count.min(MAX_COUNT);
        cell.region_others = cell.region_others.max(bounded(snapshot.region_others));
        cell.global_others = cell.global_others.max(bounded(snapshot.global_others));
        if cell.without_baseline && sends_baseline {
            cell.own = cell.own.saturating_add(bounded(snapshot.own)).min(MAX_COUNT);
            cell.without_baseline = false;
        }
        cell.confirmed = cell.confirmed.max(bounded(snapshot.own));
        let (changed, is_reportable) =
            (*cell != before, before.without_baseline && !cell.without_baseline && before.own > 0);
        if is_reportable {
            // What was spent without the base is in a report from now on, as if it was spent now.
            self.charged = now;
        }
        changed
    }

    /// Notes that the region holds `own` of cell `sequence`.
    pub fn confirm(&mut self, sequence: u64, own: u64) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.confirmed = cell.confirmed.max(own);
        }
    }

    /// The region may have lost what it held, and is told what is spent: what it granted beyond that it need not hold.
    pub fn drop_grants(&mut self) {
        let cells = [&mut self.current, &mut self.previous].into_iter().chain(&mut self.older);
        cells.filter(|cell| cell.holds_grant()).for_each(|cell| cell.confirmed = cell.own);
    }

    /// Whether the region was known to hold more of a cell than is spent.
    pub fn holds_grants(&self) -> bool {
        self.cells().any(|(_, cell)| cell.holds_grant())
    }

    /// What may be spent in the cells that count in full that the region does not know of: usually the current one.
    pub fn unconfirmed(&self) -> u64 {
        let of = |(sequence, cell): (u64, &Cell)| {
            let spent = cell.own.saturating_add(self.reserved_in(sequence));
            spent.saturating_sub(cell.confirmed)
        };
        if self.older.is_empty() {
            return of((self.sequence, &self.current));
        }
        self.cells().map(of).fold(0, u64::saturating_add)
    }

    /// Whether a base is missing in a cell that counts.
    pub fn is_without_baseline(&self) -> bool {
        self.current.without_baseline
            || self.previous.without_baseline
            || self.older.iter().any(|cell| cell.without_baseline)
    }

    /// In how many cells a base is missing.
    pub fn without_baseline_cells(&self) -> usize {
        self.cells().filter(|(_, cell)| cell.without_baseline).count()
    }

    /// A base is missing in those cells of which `forgotten` says so.
    pub fn mark_without_baseline(&mut self, forgotten: impl Fn(u64) -> bool) {
        let cells = [&mut self.current, &mut self.previous].into_iter().chain(&mut self.older);
        for (sequence, cell) in (0..=self.sequence).rev().zip(cells) {
            cell.without_baseline = forgotten(sequence);
        }
    }

    fn cell_mut(&mut self, sequence: u64) -> Option<&mut Cell> {
        match self.sequence.checked_sub(sequence)? {
            0 => Some(&mut self.current),
            1 => Some(&mut self.previous),
            back => self.older.get_mut(usize::try_from(back).ok()?.checked_sub(2)?),
        }
    }

    /// Each cell becomes the one before it; the oldest is over.
    fn roll(&mut self) {
        let before = core::mem::replace(&mut self.previous, core::mem::take(&mut self.current));
        if !self.older.is_empty() {
            self.older.rotate_right(1);
        }
        if let Some(newest) = self.older.first_mut() {
            *newest = before;
        }
    }

    /// Brings the cells to `sequence`, if it lies ahead.
    fn roll_to(&mut self, sequence: u64) {
        match sequence.saturating_sub(self.sequence) {
            0 => return,
            cells if cells <= self.before() => (0..cells).for_each(|_| self.roll()),
            _ => {
                self.previous = Cell::default();
                self.current = Cell::default();
                self.older.fill(Cell::default());
                self.unstored = false;
                // The region has forgotten by now that this process follows the key.
                self.viewed = MonoMs(0);
            }
        }
        self.sequence = sequence;
    }

    /// Notices a step of the clock. The cells are brought to where the clock before the step would be now, then take the
    /// numbers of the clock after it. Of small steps ahead the sum counts, so that many of them are one large one.
    fn follow_clock(&mut self, at: &Position, now: MonoMs) {
        let offset = at.unix().0.saturating_sub(now.0);
        let clock = self.clock.unwrap_or(offset);
        let tolerated_ms = tolerated_ms(at.cell_ms);
        let is_ahead = self.sequence.saturating_sub(at.sequence) > MAX_AHEAD.saturating_mul(self.before());
        if offset.abs_diff(clock) <= tolerated_ms && !is_ahead {
            self.clock = Some(clock.min(offset));
            return;
        }
        let expected = Position::at(UnixMs(now.0.saturating_add(clock)), at.cell_ms);
        if self.clock.is_some() {
            self.roll_to(expected.sequence);
        }
        let seen = expected.seen_from(self.sequence);
        // Where the new clock stands later in its cell than the old one did, the cell takes the next number, and the entry
        // stays at its start until the clock is there. Where there is nothing to keep, it has the clock's number.
        let is_empty = self.reservations.is_empty() && self.cells().all(|(_, cell)| *cell == Cell::default());
        let is_later = !is_empty && at.elapsed_ms > seen.elapsed_ms;
        let renumbered = at.sequence.saturating_add(u64::from(is_later));
        let is_far_ahead =
            self.sequence.saturating_sub(at.sequence) > MAX_AHEAD.saturating_mul(self.before());
        if renumbered > self.sequence || is_far_ahead || is_empty {
            self.renumber(renumbered);
        }
        self.clock = Some(offset);
    }

    /// The current cell becomes `sequence`, and the others those before it. The region does not have the counts there.
    fn renumber(&mut self, sequence: u64) {
        for cell in [&mut self.current, &mut self.previous].into_iter().chain(&mut self.older) {
            cell.confirmed = 0;
        }
        for held in &mut self.reservations {
            let back = self.sequence.saturating_sub(held.sequence);
            held.sequence = sequence.saturating_sub(back);
        }
        self.sequence = sequence;
    }

    fn reap(&mut self, now: MonoMs) {
        let dead = |held: &Reservation| held.expires <= now && held.tag.kind != ReservationKind::Deferred;
        while let Some(at) = self.reservations.iter().position(dead) {
            let dead = self.reservations.swap_remove(at);
            self.charge_in(dead.sequence, dead.amount, now);
        }
    }

    /// What is reserved for open requests is in the current cell. Where the worker is dead it counts as spent, in the cell
    /// in which its time was over.
    fn carry_open(&mut self, at: &Position, now: MonoMs) {
        let dead = |held: &Reservation| held.expires <= now && held.tag.kind == ReservationKind::Deferred;
        while let Some(found) = self.reservations.iter().position(dead) {
            let dead = self.reservations.swap_remove(found);
            let before_cell_ms = now.since(dead.expires).saturating_sub(at.elapsed_ms);
            let back = before_cell_ms.div_ceil(at.cell_ms.max(1));
            self.charge_in(self.sequence.saturating_sub(back), dead.amount, now);
        }
        let newest = self.sequence;
        let open = self.reservations.iter_mut().filter(|held| held.tag.kind == ReservationKind::Deferred);
        open.for_each(|held| held.sequence = newest);
    }
}

impl Cell {
    /// The region is not known to hold all that this process has spent.
    pub fn is_unreported(&self) -> bool {
        self.without_baseline || self.own > self.confirmed
    }

    /// Without a base `own` is not all that is spent.
    fn holds_grant(&self) -> bool {
        !self.without_baseline && self.confirmed > self.own
    }

    fn used(&self) -> u64 {
        // Without a base `own` is what came on top of it, and what the region has confirmed is some of it at the least.
        let baseline = if self.without_baseline { self.confirmed } else { 0 };
        let own = self.own.saturating_add(baseline);
        own.saturating_add(self.region_others).saturating_add(self.global_others)
    }
}
