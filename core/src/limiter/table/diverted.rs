//! What keys without an entry have used in an overflow cell, as their bucket keeps it. A key that gets an entry begins with it.
//!
//! ```text
//! list:    number u8 · record…
//! record:  family u64 · key u64 · end u64 · cell_ms u64 · held u64 · held_until u64 · cells u8 · cell u64…
//! ```
//! It follows the entries of a bucket, and takes no byte where there is none.

use super::entry::{Entry, Reservation, ReservationKind, tolerated_ms};
use crate::model::time::MonoMs;
use crate::model::window::{MAX_CELLS, MAX_LIMIT};
use alloc::vec::Vec;

/// Most records of a bucket. One more makes two of a family one.
pub const MAX_DIVERTED: usize = 16;
/// The key of a record that holds the use of several.
const REST: u64 = 0;
const WORDS: usize = 6;
const FIXED: usize = WORDS * 8 + 1;

/// What one key has used in an overflow cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diverted {
    /// Fingerprint of the overflow cell's key, which the keys of a workspace, namespace and window share.
    pub family: u64,
    /// Fingerprint of the key.
    pub key: u64,
    /// End of the newest cell, in monotonic time: clocks step.
    end: MonoMs,
    cell_ms: u64,
    /// Deferred costs that are reserved there.
    held: u64,
    /// When they count as spent.
    held_until: MonoMs,
    /// What was spent in each cell that a window touches, newest first.
    spent: Vec<u64>,
}

/// The change of an overflow cell by one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// How many cells back, and what was spent there.
    pub spent: Vec<(u64, u64)>,
    /// Deferred costs that were reserved.
    pub reserved: u64,
    /// Deferred costs that were released.
    pub released: u64,
    /// When the reservations count as spent.
    pub held_until: MonoMs,
}

impl Change {
    /// What a transaction has changed in an overflow cell that had been `before`. A baseline that has arrived is no use, nor is what is
    /// reserved for a moment: it is charged when a request passes.
    pub fn between(before: &Entry, after: &Entry) -> Change {
        let mut change = Change::default();
        for ((sequence, cell), (_, old)) in after.cells().zip(before.cells()) {
            let spent = cell.own.saturating_sub(old.own);
            if spent > 0 && cell.without_baseline == old.without_baseline {
                change.spent.push((after.sequence.saturating_sub(sequence), spent));
            }
        }
        let deferred = |held: &&Reservation| held.tag.kind == ReservationKind::Deferred;
        let sum = |entry: &Entry| {
            let held = entry.reservations.iter().filter(deferred);
            held.fold(0, |sum: u64, held| sum.saturating_add(held.amount))
        };
        let (then, now) = (sum(before), sum(after));
        (change.reserved, change.released) = (now.saturating_sub(then), then.saturating_sub(now));
        let held = after.reservations.iter().filter(deferred);
        let changed = held.filter(|held| !before.reservations.contains(held));
        change.held_until = changed.map(|held| held.expires).max().unwrap_or_default();
        change
    }

    /// Whether nothing was used.
    pub fn is_empty(&self) -> bool {
        self.spent.is_empty() && self.reserved == 0 && self.released == 0
    }
}

impl Diverted {
    /// A record without use. A window has `before` cells of `cell_ms` before the newest, which ends at `end`.
    pub fn new(family: u64, key: u64, (end, cell_ms): (MonoMs, u64), before: u64) -> Diverted {
        let cells = usize::try_from(before).unwrap_or(MAX_CELLS).saturating_add(1).min(MAX_CELLS);
        let spent = alloc::vec![0; cells];
        Diverted { family, key, end, cell_ms: cell_ms.max(1), spent, ..Diverted::default() }
    }

    /// Whether no window counts any of it.
    pub fn is_over(&self, now: MonoMs) -> bool {
        let window_ms = self.cell_ms.saturating_mul(self.spent.len().saturating_sub(1) as u64);
        let is_over = |last: MonoMs| last.after(window_ms) <= now;
        (self.held == 0 || is_over(self.held_until)) && (is_over(self.end) || self.is_unspent())
    }

    fn is_unspent(&self) -> bool {
        self.spent.iter().all(|spent| *spent == 0)
    }

    /// Adds what a change has spent and reserved in the cell that ends at `end`.
    fn add(&mut self, change: &Change, end: MonoMs, now: MonoMs) {
        self.roll(end, now);
        for (back, amount) in &change.spent {
            self.spend(*back, *amount);
        }
        self.held = self.held.saturating_add(change.reserved);
        if change.reserved > 0 {
            self.held_until = self.held_until.max(change.held_until);
        }
    }

    /// Takes a change back that was not made.
    fn remove(&mut self, change: &Change, end: MonoMs, now: MonoMs) {
        self.roll(end, now);
        for (back, amount) in &change.spent {
            if let Some(spent) = usize::try_from(*back).ok().and_then(|back| self.spent.get_mut(back)) {
                *spent = spent.saturating_sub(*amount);
            }
        }
        self.held = self.held.saturating_sub(change.reserved);
    }

    /// Moves the cells on until the newest ends at `end`, and spends reservations that have expired.
    pub fn roll(&mut self, end: MonoMs, now: MonoMs) {
        let cells = self.cells_until(end);
        if cells > 0 {
            let most = self.spent.len();
            let by = usize::try_from(cells).unwrap_or(most).min(most);
            self.spent.rotate_right(by);
            self.spent.iter_mut().take(by).for_each(|spent| *spent = 0);
            self.end = end;
        }
        if self.held > 0 && self.held_until <= now {
            let back = self.cells_from(self.held_until);
            let held = core::mem::take(&mut self.held);
            self.spend(back, held);
        }
    }

    /// Has the key's entry take over what was spent. It is the key's own use, and was reported as that of the overflow cell only. Returns
    /// whether there was any.
    pub fn return_to(&mut self, entry: &mut Entry, now: MonoMs) -> bool {
        let begins = !self.is_unspent();
        for (back, amount) in self.spent() {
            entry.charge_in(entry.sequence.saturating_sub(back), amount, now);
        }
        self.spent.fill(0);
        begins
    }

    /// Has an entry count what keys of its family have used that no record tells apart: part of it may be this key's. It counts like the
    /// use of other regions, which is neither reported nor repeated.
    pub fn count_beside(&self, entry: &mut Entry) {
        for (back, amount) in self.spent() {
            entry.count_beside(entry.sequence.saturating_sub(back), amount);
        }
    }

    /// What was spent, with how many cells back from the newest.
    pub fn spent(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0u64..).zip(self.spent.iter().copied()).filter(|(_, spent)| *spent > 0)
    }

    /// The reserved deferred costs, and when they count as spent.
    pub fn held(&self) -> (u64, MonoMs) {
        (self.held, self.held_until)
    }

    fn total(&self) -> u64 {
        self.spent.iter().fold(self.held, |sum, spent| sum.saturating_add(*spent))
    }

    fn spend(&mut self, back: u64, amount: u64) {
        if let Some(spent) = usize::try_from(back).ok().and_then(|back| self.spent.get_mut(back)) {
            *spent = spent.saturating_add(amount).min(MAX_LIMIT);
        }
    }

    /// The number of cells from the newest to the one that ends at `end`. A part of a cell, by which a clock has stepped, is none: use
    /// counts too long rather than too briefly.
    fn cells_until(&self, end: MonoMs) -> u64 {
        let later_ms = end.since(self.end).saturating_add(tolerated_ms(self.cell_ms));
        later_ms.checked_div(self.cell_ms).unwrap_or(0)
    }

    /// How many cells back from the newest `at` is.
    fn cells_from(&self, at: MonoMs) -> u64 {
        self.end.since(at).saturating_sub(1).checked_div(self.cell_ms).unwrap_or(0)
    }

    /// Makes it the use of several keys of its family.
    fn into_rest(self) -> Diverted {
        Diverted { key: REST, ..self }
    }

    fn merge(&mut self, mut other: Diverted) {
        let end = self.end.max(other.end);
        self.roll(end, MonoMs(0));
        other.roll(end, MonoMs(0));
        for (back, amount) in other.spent() {
            self.spend(back, amount);
        }
        self.held = self.held.saturating_add(other.held);
        self.held_until = self.held_until.max(other.held_until);
    }

    /// Releases up to `amount` of what is reserved; returns the rest.
    fn release(&mut self, amount: u64) -> u64 {
        let released = self.held.min(amount);
        self.held = self.held.saturating_sub(released);
        amount.saturating_sub(released)
    }
}

/// The records of a bucket, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DivertedKeys(Vec<Diverted>);

impl DivertedKeys {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The record of a key.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut Diverted> {
        self.0.iter_mut().find(|record| record.key == key && key != REST)
    }

    /// What keys of a family have used that no record tells apart, if use of `key` may be among it: unless the key's record is older, and so
    /// comes before.
    pub fn rest_of(&self, family: u64, key: u64) -> Option<&Diverted> {
        let rest = self.0.iter().position(|record| (record.key, record.family) == (REST, family))?;
        let own = self.0.iter().position(|record| record.key == key);
        self.0.get(rest).filter(|_| own.is_none_or(|own| own > rest))
    }

    /// What is reserved by keys of which no record tells it apart.
    pub fn holds_rest(&self) -> bool {
        self.0.iter().any(|record| record.key == REST && record.held > 0)
    }

    /// Notes a change of the overflow cell by the key of `new`, which is its record if it has none yet. What the key's record did not
    /// reserve was reserved before the record became one with others.
    pub fn note(&mut self, new: Diverted, change: &Change, now: MonoMs) {
        let Diverted { family, key, end, .. } = new;
        let begins = !change.spent.is_empty() || change.reserved > 0;
        if begins && self.get_mut(key).is_none() {
            self.push(new);
        }
        let mut released = change.released;
        if let Some(record) = self.get_mut(key) {
            record.add(change, end, now);
            released = record.release(released);
        }
        if let Some(rest) = self.rest_mut(family) {
            rest.roll(end, now);
            rest.release(released);
        }
    }

    /// Takes a change back that was noted and not made. Returns whether anything has changed.
    pub fn take_back(
        &mut self,
        (family, key): (u64, u64),
        change: &Change,
        end: MonoMs,
        now: MonoMs,
    ) -> bool {
        let at =
            |records: &Self, key| records.0.iter().position(|one| (one.family, one.key) == (family, key));
        let (own, rest) = (at(self, key), at(self, REST));
        if let Some(noted) = own.or(rest).and_then(|at| self.0.get_mut(at)) {
            noted.remove(change, end, now);
        }
        let holds = |at: &usize| self.0.get(*at).is_some_and(|record| record.held_until > now);
        if let Some(held) = own.filter(holds).or(rest).and_then(|at| self.0.get_mut(at)) {
            held.held = held.held.saturating_add(change.released);
        }
        own.or(rest).is_some()
    }

    fn rest_mut(&mut self, family: u64) -> Option<&mut Diverted> {
        self.0.iter_mut().find(|record| (record.key, record.family) == (REST, family))
    }

    /// Drops what no window counts.
    pub fn drop_old(&mut self, now: MonoMs) {
        self.0.retain(|record| !record.is_over(now));
    }

    /// Adds a record. If there is no room, the smallest ones of a family become one.
    fn push(&mut self, record: Diverted) {
        while self.0.len() >= MAX_DIVERTED {
            let single = self.0.iter().enumerate().filter(|(_, record)| record.key != REST);
            let smallest = single.min_by_key(|(_, record)| record.total()).map(|(at, _)| at);
            let Some(at) = smallest else {
                // So many families: the first whose use no window counts any more.
                let first = self.0.iter().enumerate().min_by_key(|(_, record)| record.end);
                let Some(at) = first.map(|(at, _)| at) else { break };
                self.0.remove(at);
                continue;
            };
            let single = self.0.remove(at).into_rest();
            match self.rest_mut(single.family) {
                Some(rest) => rest.merge(single),
                None => self.0.push(single),
            }
        }
        self.0.push(record);
    }

    /// The records in `bytes`, up to the first that does not parse.
    pub fn decode(bytes: &[u8]) -> DivertedKeys {
        let mut records = Vec::new();
        let Some((number, mut rest)) = bytes.split_first() else { return DivertedKeys(records) };
        while records.len() < usize::from(*number).min(MAX_DIVERTED)
            && let Some((record, after)) = decode(rest)
        {
            records.push(record);
            rest = after;
        }
        DivertedKeys(records)
    }

    /// Appends the records to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        out.push(self.0.len() as u8);
        for record in &self.0 {
            let Diverted { family, key, end, cell_ms, held, held_until, spent } = record;
            let words = [*family, *key, end.0, *cell_ms, *held, held_until.0];
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            out.push(spent.len() as u8);
            spent.iter().for_each(|spent| out.extend_from_slice(&spent.to_le_bytes()));
        }
    }
}

fn decode(bytes: &[u8]) -> Option<(Diverted, &[u8])> {
    let (fixed, rest) = bytes.split_at_checked(FIXED)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(fixed.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    let [family, key, end, cell_ms, held, held_until] = words;
    let cells = usize::from(*fixed.last()?);
    let (spent, rest) = rest.split_at_checked(cells.checked_mul(8)?)?;
    let is_sound = (2..=MAX_CELLS).contains(&cells) && cell_ms > 0;
    let spent = spent.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let (end, held_until, spent) = (MonoMs(end), MonoMs(held_until), spent.collect());
    is_sound.then_some((Diverted { family, key, end, cell_ms, held, held_until, spent }, rest))
}
