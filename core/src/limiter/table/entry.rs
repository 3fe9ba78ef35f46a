//! One key of the table: the cells of its window, their reservations, and how fresh the counts are.
//!
//! Most keys have two cells. A key with a hard limit has more, made with the entry; they are in a list of their own, so that other keys
//! do not pay for them.

use crate::limiter::MAX_WORKER;
use crate::model::time::{MonoMs, UnixMs};
use crate::model::window::{Counts, MAX_CELLS, MAX_COUNT, MAX_LIMIT, Position, Used};
use crate::model::wire;
use alloc::vec::Vec;

/// Most reservations of one key. Leases use at most eight, so that there is room for short-lived ones. A reservation without room is
/// refused.
const MAX_RESERVATIONS: usize = 64;
/// Most leases among them.
const MAX_LEASES: usize = 8;
/// Most reservations of deferred costs among them, one for each worker.
const MAX_OPEN: usize = 32;
/// A cell more than this many windows ahead is not caused by a small step of the clock.
const MAX_AHEAD: u64 = 2;
/// A clock may move ahead by this part of a cell while it lasts before the entry renumbers its cells. Offsets are measured
/// with an error of a few milliseconds, and a region's time approaches the right one by at most a hundredth.
const TOLERATED_PART: u64 = 8;
/// The largest step of a clock that leaves the cells of an entry where they are, in milliseconds, by the length of a cell.
pub fn tolerated_ms(cell_ms: u64) -> u64 {
    cell_ms / TOLERATED_PART
}
/// Most cells of an entry besides the current one and the one before.
pub const MAX_OLDER: usize = MAX_CELLS - 2;

/// The counts of one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Spent by this process; only grows. Without a baseline: only what was added since the eviction.
    pub own: u64,
    /// Spent by the other nodes of the region, as received.
    pub region_others: u64,
    /// Spent in other regions, as received.
    pub global_others: u64,
    /// The part of `own` that the region has acknowledged.
    pub confirmed: u64,
    /// The process evicted its count of this cell, and its baseline has not returned.
    pub without_baseline: bool,
}

/// What a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// A lease: a worker spends it without the table.
    Lease,
    /// A request over several cells is being decided.
    Hold,
    /// A query with this cost is under way. The cost is 0 where only the counts are needed: then the entry stays for the answer.
    Query,
    /// Deferred costs of a worker's requests. As they may be settled in any cell, this reservation moves along to the current one.
    Deferred,
}

/// Owner and purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The worker, a random number below 2^62.
    pub worker: u64,
    /// Its purpose.
    pub kind: ReservationKind,
}

impl Tag {
    /// The tag of reservations of nothing that keep entries for a worker's requests. It differs from that of the worker's queries by
    /// the number, whose bits are inverted: no other worker has this one, except by a chance of 1 in 2^62.
    pub fn keeping(worker: u64) -> Tag {
        Tag { worker: !worker & MAX_WORKER, kind: ReservationKind::Query }
    }
}

/// Part of the budget that its owner may still spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its owner and purpose.
    pub tag: Tag,
    /// Its cell.
    pub sequence: u64,
    /// The reserved amount.
    pub amount: u64,
    /// When its owner must be dead; from then on it counts as spent.
    pub expires: MonoMs,
}

/// One key of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Keyed hash of the key.
    pub fingerprint: u64,
    /// The limit applied last; 0 if only other nodes have used the key.
    pub limit: u64,
    /// The limit without live control, if live control set `limit`.
    pub configured: Option<u64>,
    /// End of strict mode.
    pub strict_until: MonoMs,
    /// When this process last spent or received its baseline: its counts are in reports since then.
    pub charged: MonoMs,
    /// When the region's count was last received; zero: never.
    pub viewed: MonoMs,
    /// How often it was used, for eviction.
    pub hits: u8,
    /// The region refused its count: it is evicted last, and not while it is past half its limit.
    pub unstored: bool,
    /// Sequence of `current`.
    pub sequence: u64,
    /// Unix time minus monotonic time in milliseconds, by the clock that numbers the cells; `None` before its first use.
    pub clock: Option<u64>,
    /// The newest cell.
    pub current: Cell,
    /// The cell before it.
    pub previous: Cell,
    /// The cells before that, newest first, if the window has more than two; always the same number, including empty ones.
    pub older: Vec<Cell>,
    /// All reservations.
    pub reservations: Vec<Reservation>,
}

impl Entry {
    /// An empty entry, at cell `sequence` of a key of this `resolution`.
    pub fn new(fingerprint: u64, resolution: u16, sequence: u64) -> Entry {
        let older = usize::from(resolution).saturating_sub(1).min(MAX_OLDER);
        Entry { fingerprint, sequence, older: alloc::vec![Cell::default(); older], ..Entry::default() }
    }

    /// The part of `limit` that all nodes together may spend without a query. With a hard limit, where cells count in full, a whole limit
    /// may become free at once, and all could spend it before their counts reach each other; so it is one cell's part.
    pub fn spared_at_once(&self, limit: u64) -> u64 {
        match self.before() {
            0 | 1 => u64::MAX,
            cells => limit.checked_div(cells).unwrap_or(0),
        }
    }

    /// Takes over the limit that a request applies, with the one without live control if live control set it.
    pub fn apply(&mut self, limit: u64, configured: Option<u64>) {
        (self.limit, self.configured) = (limit, configured);
    }

    /// Number of cells before the current one in a window: the key's resolution.
    pub fn before(&self) -> u64 {
        (self.older.len() as u64).saturating_add(1)
    }

    /// Length of a window in milliseconds, whose cells have `cell_ms`.
    pub fn window_ms(&self, cell_ms: u64) -> u64 {
        cell_ms.saturating_mul(self.before())
    }

    /// Moves the cells to `at`, and spends expired reservations. Returns the position in the current cell: its start, if the clock went
    /// back a little.
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

    /// Whether no window counts its cells any more, by the clock that numbers them.
    pub fn is_over(&self, at: &Position, now: MonoMs) -> bool {
        let expected = self.clock.map(|clock| Position::at(UnixMs(now.0.saturating_add(clock)), at.cell_ms));
        expected.unwrap_or(*at).sequence.saturating_sub(self.sequence) > self.before()
    }

    /// Whether more than half of its limit is used in its cells.
    pub fn is_hot(&self) -> bool {
        let used = self.cells().fold(0u64, |sum, (_, cell)| sum.saturating_add(cell.used()));
        used > self.limit / 2
    }

    /// The use without reservations.
    pub fn used(&self) -> Used {
        if self.older.is_empty() {
            return Used::Average { current: self.current.used(), previous: self.previous.used() };
        }
        self.hard_limit(|_| 0)
    }

    /// The use if all reservations are spent.
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

    /// The cells of the window, from the current one back, each with its sequence.
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

    /// The part of them that a grant has to cover, as it will be spent beyond `own`. A lease is within the slack and is reported as it is
    /// spent. A grant for what is left of it would stay with this process, which may not need it.
    pub fn claimed_in(&self, sequence: u64) -> u64 {
        let claims =
            |held: &&Reservation| held.sequence == sequence && held.tag.kind != ReservationKind::Lease;
        self.reservations.iter().filter(claims).fold(0, |sum, held| sum.saturating_add(held.amount))
    }

    /// Spends `cost` in the current cell.
    pub fn charge(&mut self, cost: u64, now: MonoMs) {
        let sequence = self.sequence;
        self.charge_in(sequence, cost, now);
    }

    /// Spends `cost` in cell `sequence`, if a window still counts it.
    pub fn charge_in(&mut self, sequence: u64, cost: u64, now: MonoMs) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.own = cell.own.saturating_add(cost).min(MAX_LIMIT);
            self.charged = now;
            self.hits = self.hits.saturating_add(1);
        }
    }

    /// Counts at least `amount` as the use of other regions in cell `sequence`, if a window still counts it.
    pub fn count_beside(&mut self, sequence: u64, amount: u64) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.global_others = cell.global_others.max(amount.min(MAX_COUNT));
        }
    }

    /// The cell of `sequence`, if a window still counts it.
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
            ReservationKind::Hold | ReservationKind::Query => usize::MAX,
        };
        let alike = self.reservations.iter().filter(|held| held.tag.kind == tag.kind).count();
        let has_place = self.reservations.len() < MAX_RESERVATIONS;
        let has_room = alike < most && (has_place || amount > 0 && self.drop_empty_reservation());
        if has_room {
            self.reservations.push(Reservation { tag, sequence, amount, expires });
        }
        has_room
    }

    /// Makes room for a reservation: one of nothing only keeps the entry, which the new one does too.
    fn drop_empty_reservation(&mut self) -> bool {
        let is_empty = |held: &Reservation| held.amount == 0 && held.tag.kind == ReservationKind::Query;
        let Some(at) = self.reservations.iter().position(is_empty) else { return false };
        self.reservations.swap_remove(at);
        true
    }

    /// Releases the reservation of `tag` in cell `sequence`; `None` if it has expired and counts as spent.
    pub fn release(&mut self, tag: Tag, sequence: u64) -> Option<u64> {
        let at = self.reservations.iter().position(|held| held.tag == tag && held.sequence == sequence)?;
        Some(self.reservations.swap_remove(at).amount)
    }

    /// The same for the newest cell with a reservation of `tag`; also returns the sequence.
    pub fn release_newest(&mut self, tag: Tag) -> Option<(u64, u64)> {
        let held = self.reservations.iter().filter(|held| held.tag == tag);
        let sequence = held.map(|held| held.sequence).max()?;
        self.release(tag, sequence).map(|amount| (sequence, amount))
    }

    /// Releases `amount` of the reservation of `tag` in any cell; returns how much of it was left. The rest counts as spent.
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

    /// Whether a worker has reserved something of it, or waits for it to decide.
    pub fn is_reserved(&self, now: MonoMs) -> bool {
        self.reservations.iter().any(|held| held.amount > 0 || held.expires > now)
    }

    /// Whether it has deferred costs that a live worker will settle.
    pub fn is_deferred(&self, now: MonoMs) -> bool {
        let open = |held: &Reservation| held.tag.kind == ReservationKind::Deferred && held.expires > now;
        self.reservations.iter().any(open)
    }

    /// What is reserved for deferred costs.
    pub fn deferred(&self) -> u64 {
        let deferred = self.reservations.iter().filter(|held| held.tag.kind == ReservationKind::Deferred);
        deferred.map(|held| held.amount).fold(0, u64::saturating_add)
    }

    /// Merges the region's counts by max. A cell without a baseline gets it, once, if the snapshot `sends_baseline`: then it contains all
    /// that the region has of this process. True if anything but a time changed.
    pub fn merge(&mut self, snapshot: &wire::Snapshot, sends_baseline: bool, now: MonoMs) -> bool {
        self.viewed = now;
        let Some(cell) = self.cell_mut(snapshot.sequence) else { return false };
        let before = *cell;
        let bounded = |count: u64| count.min(MAX_COUNT);
        cell.region_others = cell.region_others.max(bounded(snapshot.region_others));
        cell.global_others = cell.global_others.max(bounded(snapshot.global_others));
        if cell.without_baseline && sends_baseline {
            cell.own = cell.own.saturating_add(bounded(snapshot.own)).min(MAX_LIMIT);
            cell.without_baseline = false;
        }
        cell.confirmed = cell.confirmed.max(bounded(snapshot.own));
        let (changed, is_reportable) =
            (*cell != before, before.without_baseline && !cell.without_baseline && before.own > 0);
        if is_reportable {
            // What was spent without the baseline is reported from now on, as if it was spent now.
            self.charged = now;
        }
        changed
    }

    /// Notes that the region has `own` of cell `sequence`.
    pub fn confirm(&mut self, sequence: u64, own: u64) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.confirmed = cell.confirmed.max(own);
        }
    }

    /// Drops grants beyond what was spent, as the region may have lost them.
    pub fn drop_grants(&mut self) {
        let cells = [&mut self.current, &mut self.previous].into_iter().chain(&mut self.older);
        cells.filter(|cell| cell.holds_grant()).for_each(|cell| cell.confirmed = cell.own);
    }

    /// Whether the region has granted more of a cell than was spent.
    pub fn holds_grants(&self) -> bool {
        self.cells().any(|(_, cell)| cell.holds_grant())
    }

    /// What would be spent beyond the region's acknowledgement after `cost` more, in the cells that count in full: usually the current
    /// one. What the region has granted beyond `own` covers a part of the cost.
    pub fn unconfirmed_with(&self, cost: u64) -> u64 {
        let of = |(sequence, cell): (u64, &Cell)| {
            let more = if sequence == self.sequence { cost } else { 0 };
            let spent = cell.own.saturating_add(self.reserved_in(sequence)).saturating_add(more);
            spent.saturating_sub(cell.confirmed)
        };
        if self.older.is_empty() {
            return of((self.sequence, &self.current));
        }
        self.cells().map(of).fold(0, u64::saturating_add)
    }

    /// Whether a counting cell has no baseline.
    pub fn is_without_baseline(&self) -> bool {
        self.current.without_baseline
            || self.previous.without_baseline
            || self.older.iter().any(|cell| cell.without_baseline)
    }

    /// Number of cells without a baseline.
    pub fn without_baseline_cells(&self) -> usize {
        self.cells().filter(|(_, cell)| cell.without_baseline).count()
    }

    /// Marks the cells for which `forgotten` is true as without a baseline.
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

    /// Moves each cell to the place before it; the oldest is dropped.
    fn roll(&mut self) {
        let before = core::mem::replace(&mut self.previous, core::mem::take(&mut self.current));
        if !self.older.is_empty() {
            self.older.rotate_right(1);
        }
        if let Some(newest) = self.older.first_mut() {
            *newest = before;
        }
    }

    /// Moves the cells to `sequence`, if it is ahead.
    fn roll_to(&mut self, sequence: u64) {
        match sequence.saturating_sub(self.sequence) {
            0 => return,
            cells if cells <= self.before() => (0..cells).for_each(|_| self.roll()),
            _ => {
                self.previous = Cell::default();
                self.current = Cell::default();
                self.older.fill(Cell::default());
                self.unstored = false;
                // By now the region has dropped this process' subscription of the key.
                self.viewed = MonoMs(0);
            }
        }
        self.sequence = sequence;
    }

    /// Follows a step of the clock: the cells are moved to the time of the clock before the step, then renumbered by the clock after it.
    /// Small steps ahead are summed while a cell lasts, so that many of them count as a large one.
    fn follow_clock(&mut self, at: &Position, now: MonoMs) {
        let offset = at.unix().0.saturating_sub(now.0);
        let clock = self.clock.unwrap_or(offset);
        let tolerated_ms = tolerated_ms(at.cell_ms);
        let is_ahead = self.sequence.saturating_sub(at.sequence) > MAX_AHEAD.saturating_mul(self.before());
        if offset.abs_diff(clock) <= tolerated_ms && !is_ahead {
            // What the clock has moved ahead is summed within a cell: a cell that begins is as long as the others.
            self.clock = Some(if at.sequence > self.sequence { offset } else { clock.min(offset) });
            return;
        }
        let expected = Position::at(UnixMs(now.0.saturating_add(clock)), at.cell_ms);
        if self.clock.is_some() {
            self.roll_to(expected.sequence);
        }
        let seen = expected.seen_from(self.sequence);
        // If the new clock is later in its cell than the old one, the cell gets the next number, and the entry stays at that cell's start
        // until the clock reaches it. An empty entry takes the clock's cell.
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

    /// Numbers the current cell `sequence` and the others accordingly. The region does not have these counts yet.
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
            if dead.amount > 0 {
                self.charge_in(dead.sequence, dead.amount, now);
            }
        }
    }

    /// Moves reservations of deferred costs to the current cell. If the worker is dead they count as spent, in the cell in which they
    /// expired.
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
    /// Whether the region has not acknowledged all that this process has spent.
    pub fn is_unreported(&self) -> bool {
        self.without_baseline || self.own > self.confirmed
    }

    /// Whether the region has a grant beyond `own`; unknown without a baseline.
    fn holds_grant(&self) -> bool {
        !self.without_baseline && self.confirmed > self.own
    }

    pub(in crate::limiter) fn used(&self) -> u64 {
        // Without a baseline `own` is what was added to it, and the region's acknowledgement is a lower bound of the baseline.
        let baseline = if self.without_baseline { self.confirmed } else { 0 };
        let own = self.own.saturating_add(baseline);
        own.saturating_add(self.region_others).saturating_add(self.global_others)
    }
}
