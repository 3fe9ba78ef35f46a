//! The replicated log of live control, of one incarnation of the database: the newest control of each target and slot,
//! deletions included, by target and by revision. An aggregator reads it from the database ([`super::book`]), and a
//! filter from the frames of its aggregator.
//!
//! [`Log::take`] and the others call back for each replaced control, so that what is derived from them is updated, not
//! rebuilt.

use super::scope::ControlBody;
use super::{Control, Effect, Selector, Slot, Target};
use crate::model::time::UnixMs;
use crate::model::wire;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Most controls in a database and an aggregator, deleted and expired ones included.
pub const MAX_KEPT: usize = 2 * super::MAX_CONTROLS;
/// Controls that expired less than this ago are still stored and sent: the clock by which they expired may be wrong, and a control that
/// is not sent counts as received. Clocks are rarely wrong by a day for long.
pub const KEPT_OVER_MS: u64 = 24 * 60 * 60 * 1_000;
/// Most deletions that are stored although no older frame can arrive.
const MAX_DELETIONS: usize = 256;

/// The newest control of one target and slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The control.
    pub control: Control,
    /// Whether it was deleted.
    pub is_deleted: bool,
    /// The stamp of its change, at most [`MAX_STAMP`](super::book::MAX_STAMP); 0 in a filter.
    pub stamp: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// The incarnation; 0 before the first frame.
    pub(super) incarnation: u64,
    /// All up to this revision was received.
    complete_through: u64,
    /// The proof and the stamp that were received with it.
    proof: u64,
    stamp: u64,
    /// The same while frames of one set arrive.
    received: u64,
    /// The revision of a set that is sent from scratch.
    as_of: u64,
    entries: BTreeMap<Place, Stored>,
    /// The same by revision.
    revisions: BTreeSet<(u64, Place)>,
    /// Number of deletions.
    deletions: usize,
    /// Up to this revision deletions may be missing.
    dropped: u64,
    /// The clock of the last sender; 0 if it sent none.
    clock: u64,
}

/// A target and a slot.
type Place = (Arc<Target>, Slot);

/// The newest control of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    effect: Effect,
    pub expires: Option<UnixMs>,
    pub revision: u64,
    /// Deleted; stored until no older frame can arrive, and somewhat longer for [`Log::since`].
    pub deleted: bool,
    pub stamp: u64,
}

/// Called with a target, its control before and its control now.
pub(super) trait OnChange: FnMut(&Target, Option<ControlBody>, Option<ControlBody>) {}

impl<F: FnMut(&Target, Option<ControlBody>, Option<ControlBody>)> OnChange for F {}

/// For a set that is not in use yet.
pub(super) fn ignore_change(_: &Target, _: Option<ControlBody>, _: Option<ControlBody>) {}

impl Log {
    /// An empty log for a set from scratch, of which this is the first frame.
    pub fn begin(frame: &wire::Controls) -> Log {
        let wire::Controls { incarnation, as_of, after: received, .. } = *frame;
        Log { incarnation, as_of, received, ..Log::default() }
    }

    /// The log of a stored frame.
    pub fn from_frame(frame: &wire::Controls) -> Log {
        let mut log = Log { incarnation: frame.incarnation, ..Log::default() };
        log.follow(frame);
        log
    }

    /// Applies a frame with all that is newer than the complete revision.
    pub fn follow(&mut self, frame: &wire::Controls) {
        self.take(frame, &mut 0, ignore_change);
        self.complete(frame);
    }

    /// The revision up to which all was received.
    pub fn known(&self) -> wire::ControlsKnown {
        wire::ControlsKnown {
            incarnation: self.incarnation,
            revision: self.complete_through,
            proof: self.proof,
            stamp: self.stamp,
        }
    }

    /// What is newer than a revision; `None` if deletions since then may be missing.
    pub fn since(&self, revision: u64) -> Option<wire::Controls> {
        if !(self.dropped..=self.complete_through).contains(&revision) {
            return None;
        }
        let news = self.after(revision).take_while(|entry| entry.control.revision <= self.complete_through);
        let entries = news.map(|entry| entry.to_wire()).collect();
        Some(wire::Controls { entries, now_ms: self.clock, ..Default::default() })
    }

    /// All with a higher revision, deletions included, in the order of revisions.
    pub fn after(&self, revision: u64) -> impl DoubleEndedIterator<Item = Entry> + '_ {
        let first = (revision.saturating_add(1), (Arc::new(Target::least()), Slot::Override));
        let entry = |(_, place): &(u64, Place)| Some(self.entries.get(place)?.entry(&place.0));
        self.revisions.range(first..).filter_map(entry)
    }

    /// What is stored, in the order of targets.
    pub fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.entries.values()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of one revision.
    pub fn entry(&self, revision: u64) -> Option<Entry> {
        self.after(revision.checked_sub(1)?).next().filter(|entry| entry.control.revision == revision)
    }

    /// All controls as one frame, deletions included.
    pub fn to_frame(&self) -> wire::Controls {
        wire::Controls {
            incarnation: self.incarnation,
            entries: self
                .entries
                .iter()
                .map(|((target, _), stored)| stored.entry(target).to_wire())
                .collect(),
            complete_through: self.complete_through,
            proof: self.proof,
            stamp: self.stamp,
            from_scratch: true,
            now_ms: self.clock,
            ..Default::default()
        }
    }

    /// All controls that are not deleted, in the order of targets.
    pub fn controls(&self) -> impl Iterator<Item = Control> + '_ {
        let there = |(_, stored): &(_, &Stored)| !stored.deleted;
        self.entries.iter().filter(there).map(|((target, _), stored)| stored.on(target))
    }

    /// The control of one revision, if it was not replaced.
    pub fn of_revision(&self, revision: u64) -> Option<Control> {
        self.entry(revision).filter(|entry| !entry.is_deleted).map(|entry| entry.control)
    }

    /// The controls of one scope, and of the rule of that name.
    pub fn of_scope(&self, workspace: &str, scope: &str) -> impl Iterator<Item = (&Target, ControlBody)> {
        let selector = Selector::Identifier(String::new());
        let first = Target { workspace: workspace.into(), scope: scope.into(), selector, window_ms: None };
        let is_here = move |target: &Target| target.workspace == workspace && target.scope == scope;
        let from_here = self.entries.range((Arc::new(first), Slot::Override)..);
        from_here
            .take_while(move |((target, _), _)| is_here(target))
            .filter_map(|((target, _), stored)| Some((&**target, stored.body(target)?)))
    }

    /// Whether a frame belongs to the set from scratch that is collected here.
    pub fn belongs(&self, frame: &wire::Controls) -> bool {
        (self.incarnation, self.as_of) == (frame.incarnation, frame.as_of)
    }

    /// Whether it continues what was received of the set.
    pub fn follows(&self, frame: &wire::Controls) -> bool {
        frame.after <= self.received
    }

    /// Marks that earlier deletions are unknown, as this set replaces another.
    pub fn begin_anew(&mut self) {
        self.dropped = self.complete_through;
    }

    /// Calls back with the differences from `before`; returns whether there are any.
    pub fn compare(&self, before: &Log, mut on_change: impl OnChange) -> bool {
        let (mut old, mut new) = (before.entries.iter().peekable(), self.entries.iter().peekable());
        let mut differs = false;
        loop {
            let order = match (old.peek(), new.peek()) {
                (Some((old, _)), Some((new, _))) => old.cmp(new),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let was = if order.is_le() { old.next() } else { None };
            let is = if order.is_ge() { new.next() } else { None };
            let Some(((target, _), _)) = is.or(was) else { return differs };
            let body = |stored: Option<(&Place, &Stored)>| stored.and_then(|(_, stored)| stored.body(target));
            let (was, is) = (body(was), body(is));
            if was != is {
                differs = true;
                on_change(target, was, is);
            }
        }
    }

    /// Drops controls that expired long ago by all clocks. What they replaced is older than the complete revision and is not sent again.
    pub fn drop_expired(&mut self, now: UnixMs, on_change: impl OnChange) {
        let Some(long_ago) = self.clock.min(now.0).checked_sub(KEPT_OVER_MS) else { return };
        let complete_through = self.complete_through;
        self.drop_where(
            |stored| stored.over_at(complete_through).is_some_and(|at| at <= long_ago),
            on_change,
        );
    }

    /// Makes room for a frame: drops deletions, then the controls that expired first.
    fn make_room(&mut self, frame: &wire::Controls, on_change: impl OnChange) {
        let excess = |held: usize| held.saturating_add(frame.entries.len()).saturating_sub(MAX_KEPT);
        if excess(self.entries.len()) > 0 && self.deletions > 0 {
            self.drop_deletions();
        }
        let (complete_through, excess) = (self.complete_through, excess(self.entries.len()));
        if excess == 0 {
            return;
        }
        let over_at = |stored: &Stored| stored.over_at(complete_through).filter(|at| *at <= frame.now_ms);
        let mut ends: Vec<u64> = self.entries.values().filter_map(over_at).collect();
        ends.sort_unstable();
        if let Some(last) = ends.get(excess.saturating_sub(1)).or(ends.last()).copied() {
            self.drop_where(|stored| over_at(stored).is_some_and(|at| at <= last), on_change);
        }
    }

    /// Merges a frame's entries; returns whether anything changed.
    pub fn take(&mut self, frame: &wire::Controls, refused: &mut u64, mut on_change: impl OnChange) -> bool {
        if frame.now_ms > 0 {
            self.clock = frame.now_ms;
        }
        self.make_room(frame, &mut on_change);
        let mut changed = false;
        for entry in &frame.entries {
            // An entry up to the revision that is complete was received already, and may have been dropped.
            if entry.revision <= self.complete_through {
                continue;
            }
            match Control::from_wire(entry) {
                Ok(control) => changed |= self.put(control, entry.deleted, refused, &mut on_change),
                Err(_) => *refused = refused.saturating_add(1),
            }
        }
        changed
    }

    fn put(
        &mut self,
        control: Control,
        deleted: bool,
        refused: &mut u64,
        on_change: &mut impl OnChange,
    ) -> bool {
        // Expired and deleted controls may arrive before those in force.
        let is_new = || {
            let place = (Arc::new(control.target.clone()), control.effect.slot());
            !self.entries.contains_key(&place)
        };
        if self.entries.len() >= MAX_KEPT && is_new() {
            *refused = refused.saturating_add(1);
            return false;
        }
        self.insert(&Entry { control, is_deleted: deleted, stamp: 0 }, on_change)
    }

    /// Adds an entry, unless a newer one of its target is there; returns whether anything changed.
    pub fn insert(&mut self, entry: &Entry, mut on_change: impl OnChange) -> bool {
        let Entry { control: Control { target, effect, expires, revision }, is_deleted, stamp } = entry;
        let stored = Stored {
            effect: *effect,
            expires: *expires,
            revision: *revision,
            deleted: *is_deleted,
            stamp: *stamp,
        };
        let place = (Arc::new(target.clone()), effect.slot());
        let before = self.entries.get(&place).copied();
        if before.is_some_and(|before| before.revision >= stored.revision) {
            return false;
        }
        if let Some(before) = before {
            self.revisions.remove(&(before.revision, place.clone()));
        }
        let was_deleted = before.is_some_and(|before| before.deleted);
        self.deletions =
            self.deletions.saturating_add(usize::from(*is_deleted)).saturating_sub(usize::from(was_deleted));
        on_change(target, before.and_then(|before| before.body(target)), stored.body(target));
        self.revisions.insert((stored.revision, place.clone()));
        self.entries.insert(place, stored);
        before.is_some() || !is_deleted
    }

    /// Notes that all up to a revision is there.
    pub fn complete_through(&mut self, known: wire::ControlsKnown) {
        let wire::ControlsKnown { incarnation, revision, proof, stamp } = known;
        (self.incarnation, self.complete_through, self.received) = (incarnation, revision, revision);
        (self.proof, self.stamp) = (proof, stamp);
    }

    /// Notes the revision up to which a frame completes the set; returns whether the set is complete.
    pub fn complete(&mut self, frame: &wire::Controls) -> bool {
        if frame.after > self.received.max(self.complete_through) {
            return false;
        }
        let last = frame.entries.iter().map(|entry| entry.revision).max().unwrap_or(0);
        self.received = self.received.max(last);
        if frame.complete_through == 0 {
            return false;
        }
        if self.complete_through <= frame.complete_through {
            (self.complete_through, self.proof) = (frame.complete_through, frame.proof);
            self.stamp = frame.stamp;
        }
        self.received = self.complete_through;
        if self.deletions > MAX_DELETIONS {
            self.drop_deletions();
        }
        true
    }

    fn drop_deletions(&mut self) {
        let complete_through = self.complete_through;
        self.drop_where(|stored| stored.deleted && stored.revision <= complete_through, ignore_change);
        self.dropped = complete_through;
    }

    /// Drops what is over.
    pub fn drop_where(&mut self, over: impl Fn(&Stored) -> bool, mut on_change: impl OnChange) {
        let Log { entries, revisions, .. } = self;
        let mut deletions = 0_usize;
        entries.retain(|place, stored| {
            let stays = !over(stored);
            if !stays {
                on_change(&place.0, stored.body(&place.0), None);
                revisions.remove(&(stored.revision, place.clone()));
            }
            deletions = deletions.saturating_add(usize::from(stays && stored.deleted));
            stays
        });
        self.deletions = deletions;
    }
}

impl Entry {
    /// Whether it is not in force.
    pub(super) fn is_over(&self, now: UnixMs) -> bool {
        self.is_deleted || !self.control.is_in_force(now)
    }

    /// The wire format.
    pub(super) fn to_wire(&self) -> wire::Control {
        wire::Control { deleted: self.is_deleted, ..self.control.to_wire() }
    }
}

impl Stored {
    /// Whether it is not in force.
    pub fn is_over(&self, now: UnixMs) -> bool {
        self.deleted || self.expires.is_some_and(|expires| expires <= now)
    }

    fn entry(&self, target: &Target) -> Entry {
        Entry { control: self.on(target), is_deleted: self.deleted, stamp: self.stamp }
    }

    fn on(&self, target: &Target) -> Control {
        Control {
            target: target.clone(),
            effect: self.effect,
            expires: self.expires,
            revision: self.revision,
        }
    }

    /// Its end; `None` if it has none, or if an older control may arrive that it replaces.
    fn over_at(&self, complete_through: u64) -> Option<u64> {
        self.expires.map(|at| at.0).filter(|_| self.revision <= complete_through)
    }

    fn body(&self, target: &Target) -> Option<ControlBody> {
        let Stored { effect, expires, revision, deleted, .. } = *self;
        (!deleted).then_some(ControlBody { effect, window_ms: target.window_ms, expires, revision })
    }
}
