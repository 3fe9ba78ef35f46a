//! Live control of one worker: stores received controls in shared data, and loads those of other workers.
//!
//! Shared data has a small head with two serials, one for the set of controls and one for the process' own bans. Each worker reads the head
//! at its tick and loads what has changed. The newest set of an incarnation replaces others; bans are merged. So a new worker,
//! configuration or VM has the controls at once, and keeps them while the region is unavailable.

use super::bans::Local;
use super::set::Controls;
use super::stored::{self, Found};
use crate::model::key::Namespace;
use crate::model::shared::{Place, Shared, Version};
use crate::model::time::{MonoMs, Now};
use crate::model::wire;
use alloc::vec::Vec;

/// Least time between two reads of the head; a little less than a tick, as ticks jitter.
const LOOK_MS: u64 = 40;
/// Time after which everything is loaded even if the head has not changed: a worker may have died before it wrote the head.
const RELOOK_MS: u64 = 5_000;
/// Attempts at a compare-and-set before the next tick tries again.
const MAX_TRIES: usize = 16;
/// A larger buffer is freed after use.
const KEEP_BYTES: usize = 64 * 1024;

/// The controls of one worker.
#[derive(Debug, Default)]
pub struct Keeper {
    controls: Controls,
    head: Head,
    /// Version of the stored set that was read or written last.
    set: Option<Version>,
    /// The same for the stored bans.
    bans: Option<Version>,
    /// What has to be stored.
    unsaved: Unsaved,
    /// The set has changed since the own bans were compared with it.
    changed: bool,
    looked: MonoMs,
    relooked: MonoMs,
    /// The state that was sent last on the stream.
    sent: Option<wire::ControlsKnown>,
    buffer: Vec<u8>,
}

/// Grows with each store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    set: u64,
    bans: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unsaved {
    set: bool,
    bans: bool,
    head: Head,
}

impl Keeper {
    /// Loads the controls of the process. Call it after the table was established.
    pub fn load(shared: &mut impl Shared, now: Now) -> Keeper {
        let mut keeper = Keeper { looked: now.mono, relooked: now.mono, ..Keeper::default() };
        keeper.head = keeper.read_head(shared).1;
        keeper.load_set(shared);
        keeper.load_bans(shared, now);
        keeper
    }

    /// All controls.
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// Applies a frame of the aggregator.
    pub fn on_frame(&mut self, shared: &mut impl Shared, frame: &wire::Controls) {
        let known = self.controls.known();
        let changes = self.controls.apply(frame);
        self.changed |= changes;
        // Incomplete sets are not stored for other workers.
        if changes && frame.complete_through != 0 {
            self.unsaved.set = true;
            self.save_set(shared);
        }
        self.unsaved.bans |= self.controls.bans_mut().lift(frame, known);
    }

    /// Bans an identifier in this process; other workers load the ban at their next ticks.
    pub fn ban(&mut self, namespace: Namespace<&str>, canonical: &[u8], ban: Local, now: Now) {
        self.unsaved.bans |= self.controls.ban_here(namespace, canonical, ban, now);
    }

    /// Stores what was not stored yet, and loads what other workers stored.
    pub fn tick(&mut self, shared: &mut impl Shared, now: Now) {
        if now.mono.since(self.looked) < LOOK_MS {
            return;
        }
        self.looked = now.mono;
        self.controls.settle();
        if self.unsaved.set {
            self.save_set(shared);
        }
        if core::mem::take(&mut self.changed) {
            self.unsaved.bans |= self.controls.take_over();
        }
        if self.unsaved.bans {
            self.save_bans(shared, now);
        }
        self.announce(shared);
        let relook = now.mono.since(self.relooked) >= RELOOK_MS;
        let (_, head) = self.read_head(shared);
        let before = core::mem::replace(&mut self.head, head);
        if relook {
            self.relooked = now.mono;
            self.controls.bans_mut().drop_expired(now);
            self.controls.drop_expired(now.unix);
        }
        if relook || head.set != before.set {
            self.load_set(shared);
        }
        if relook || head.bans != before.bans {
            self.load_bans(shared, now);
        }
        self.buffer.shrink_to(KEEP_BYTES);
    }

    /// Stores what is not yet stored, as this worker ends.
    pub fn shutdown(&mut self, shared: &mut impl Shared, now: Now) {
        if self.unsaved.set {
            self.save_set(shared);
        }
        if self.unsaved.bans {
            self.save_bans(shared, now);
        }
    }

    /// The state to send to the aggregator, if it changed. `subscribed`: this worker's stream is the subscriber's.
    pub fn to_send(&mut self, subscribed: bool) -> Option<wire::ControlsKnown> {
        if !subscribed {
            self.sent = None;
            return None;
        }
        let known = Some(self.controls.known());
        (core::mem::replace(&mut self.sent, known) != known).then_some(known).flatten()
    }

    fn load_set(&mut self, shared: &mut impl Shared) {
        let version = shared.load(Place::ControlSet, &mut self.buffer);
        if version == self.set {
            return;
        }
        if self.unsaved.set {
            return self.save_set(shared);
        }
        self.set = version;
        if stored::known(&self.buffer) != Some(self.controls.known()) {
            self.changed |= self.take_stored();
        }
    }

    /// Applies the loaded buffer, if it can be read.
    fn take_stored(&mut self) -> bool {
        match stored::read(&self.buffer, self.controls.known()) {
            Some(Found::News(frame)) => drop(self.controls.apply(&frame)),
            Some(Found::All(log)) => drop(self.controls.replace(log)),
            None => return false,
        }
        true
    }

    fn load_bans(&mut self, shared: &mut impl Shared, now: Now) {
        let version = shared.load(Place::Bans, &mut self.buffer);
        if version != self.bans {
            self.bans = version;
            self.controls.bans_mut().merge(&self.buffer, now);
        }
    }

    fn save_set(&mut self, shared: &mut impl Shared) {
        let known = self.controls.known();
        for _ in 0..MAX_TRIES {
            let version = shared.load(Place::ControlSet, &mut self.buffer);
            let stored = stored::known(&self.buffer).filter(|stored| stored.incarnation == known.incarnation);
            let is_newer = stored.is_some_and(|stored| stored.revision > known.revision);
            if is_newer && self.take_stored() {
                (self.set, self.unsaved.set, self.changed) = (version, false, true);
                return;
            }
            let mine = || stored::write(&self.buffer, self.controls.log());
            if stored == Some(known) || shared.store(Place::ControlSet, &mine(), version) {
                self.unsaved.set = false;
                self.unsaved.head.set = 1;
                return self.announce(shared);
            }
        }
    }

    fn save_bans(&mut self, shared: &mut impl Shared, now: Now) {
        for _ in 0..MAX_TRIES {
            let version = shared.load(Place::Bans, &mut self.buffer);
            self.controls.bans_mut().merge(&self.buffer, now);
            self.controls.bans_mut().drop_expired(now);
            if shared.store(Place::Bans, &self.controls.bans().encode(), version) {
                self.unsaved.bans = false;
                self.unsaved.head.bans = 1;
                return self.announce(shared);
            }
        }
    }

    /// Raises the head's serials after a store.
    fn announce(&mut self, shared: &mut impl Shared) {
        if self.unsaved.head == Head::default() {
            return;
        }
        for _ in 0..MAX_TRIES {
            let (version, head) = self.read_head(shared);
            let Head { set, bans } = self.unsaved.head;
            let grown = Head { set: head.set.wrapping_add(set), bans: head.bans.wrapping_add(bans) };
            let words = [grown.set, grown.bans];
            if shared.store(Place::Controls, words.map(u64::to_le_bytes).as_flattened(), version) {
                self.unsaved.head = Head::default();
                // This worker need not load the set that it stored, unless another one was stored too.
                if head.set == self.head.set {
                    self.head.set = grown.set;
                }
                return;
            }
        }
    }

    fn read_head(&mut self, shared: &mut impl Shared) -> (Option<Version>, Head) {
        let version = shared.load(Place::Controls, &mut self.buffer);
        let words = self.buffer.as_chunks::<8>().0;
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        (version, Head { set: word(0), bans: word(1) })
    }
}
