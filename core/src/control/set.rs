//! The set of controls that a process has, and how it follows the region's.
//!
//! Each change has a revision of its own. What has the same target and [`Slot`](super::Slot) is replaced by the higher one, a deletion as well,
//! so frames may come twice, late or in any order. A set that is told from scratch is gathered aside, and takes the place of
//! what was there when it is complete; what another database says counts in no other way.
//!
//! Leaves to others: lookups (`index`), keeping it where all workers of the process find it (`keeper`).

use super::bans::{Bans, Local, Named};
use super::index::{Banned, Found, Index, Scratch, Subject};
use super::stock::{Stock, unheard};
use super::{Control, Slot, Target};
use crate::model::time::UnixMs;
use crate::model::wire;
use core::net::IpAddr;

/// All controls, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    stock: Stock,
    /// What is being told from scratch.
    incoming: Option<Stock>,
    index: Index,
    bans: Bans,
    refused: u64,
}

impl Controls {
    /// Takes a frame. Whether it changed what is in force or known.
    pub fn apply(&mut self, frame: &wire::Controls) -> bool {
        if frame.incarnation == 0 {
            return false;
        }
        if frame.from_scratch {
            self.incoming = Some(Stock::begin(frame));
        }
        let before = self.known();
        let mut changed = false;
        if self.stock.incarnation == frame.incarnation {
            let hear = |target: &Target, was, is| self.index.change(target, was, is);
            changed |= self.stock.take(frame, &mut self.refused, hear);
            // What is told from scratch does not say what is gone.
            if !frame.from_scratch && frame.as_of == 0 {
                self.stock.complete(frame);
            }
        }
        if let Some(mut incoming) = self.incoming.take_if(|incoming| incoming.belongs(frame))
            && incoming.follows(frame)
        {
            incoming.take(frame, &mut 0, unheard);
            match incoming.complete(frame) {
                true => changed |= self.replace(incoming),
                false => self.incoming = Some(incoming),
            }
        }
        // The frames of one telling cost their patterns and networks once.
        if frame.complete_through != 0 {
            self.settle();
        }
        changed || before != self.known()
    }

    /// Lets patterns and networks count of which a telling has been begun and not ended; for a tick.
    pub(super) fn settle(&mut self) {
        self.index.settle(&self.stock);
    }

    /// Lets go of what has been over for long, by this moment and by the clock of whoever told last: one of them may be wrong.
    pub fn forget(&mut self, now: UnixMs) {
        self.stock.forget(now, |target, was, is| self.index.change(target, was, is));
        self.settle();
    }

    /// Lets own bans deny no longer by themselves that the region has in force; whether there were any.
    pub(super) fn take_over(&mut self) -> bool {
        let Controls { bans, index, .. } = self;
        !bans.is_empty()
            && bans.take_over(|workspace, namespace, canonical| index.named(workspace, namespace, canonical))
    }

    /// Up to which revision everything is known, for the aggregator.
    pub fn known(&self) -> wire::ControlsKnown {
        self.stock.known()
    }

    /// Entries that were refused, as they were no controls or too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether nothing is said of anybody: nobody has to be looked up.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty() && self.bans.is_empty()
    }

    /// All that are there, in the order of their targets; those that have expired too.
    pub fn iter(&self) -> impl Iterator<Item = Control> + '_ {
        self.stock.controls()
    }

    /// What is said of a subject at this moment.
    pub fn find(&self, subject: &Subject<'_>, now: UnixMs, scratch: &mut Scratch) -> Found {
        let mut found = self.index.find(subject, now, scratch);
        if !found.exempt && !self.bans.is_empty() {
            let Subject { workspace, namespace, canonical, .. } = *subject;
            let own = self.bans.until(workspace, namespace, canonical, now).map(Banned::Until);
            found.ban = found.ban.max(own);
        }
        found
    }

    /// Which word makes what [`Controls::find`] finds in a slot, for people who look: it takes a walk over all. None of a ban
    /// that a rule of this process made.
    pub fn source(
        &self,
        subject: &Subject<'_>,
        slot: Slot,
        now: UnixMs,
        scratch: &mut Scratch,
    ) -> Option<Control> {
        let revision = self.index.revision(subject, slot, now, scratch)?;
        self.stock.of_revision(revision)
    }

    /// What a rule's shadow switch says, if there is one.
    pub fn shadow(&self, workspace: &str, rule: &str, now: UnixMs) -> Option<bool> {
        self.index.shadow(workspace, rule, now)
    }

    /// Whether clients' addresses matter in this workspace.
    pub fn has_networks(&self, workspace: &str) -> bool {
        self.index.has_networks(workspace)
    }

    /// Of the networks that are named for all namespaces, the longest prefix that holds an address, and whether it is banned.
    pub fn network(&self, workspace: &str, address: IpAddr, now: UnixMs) -> Option<(u8, bool)> {
        self.index.network(workspace, address, now)
    }

    /// A rule of this process bans somebody; see [`Local`]. Whether that changes anything.
    pub fn ban_here(
        &mut self,
        (workspace, namespace): (&str, &str),
        canonical: &[u8],
        ban: Local,
        now: UnixMs,
    ) -> bool {
        self.bans.put((workspace, namespace), canonical, ban, now)
    }

    /// How long the region bans exactly this identifier in exactly this namespace, expired or not; `None` if it does not.
    pub fn named(&self, (workspace, namespace): (&str, &str), canonical: &[u8]) -> Option<Banned> {
        self.index.named(workspace, namespace, canonical)
    }

    /// Bans that rules of this process made, that are in force, and that the region has not taken over.
    pub fn open_bans(&self, now: UnixMs) -> impl Iterator<Item = Named<'_>> {
        self.bans.open(now)
    }

    /// Grows whenever anything of the process' own bans changes.
    pub fn bans_version(&self) -> u64 {
        self.bans.version()
    }

    /// The last ban of somebody that is remembered, whoever made it.
    pub fn banned_here(
        &self,
        (workspace, namespace): (&str, &str),
        canonical: &[u8],
        now: UnixMs,
    ) -> Option<Local> {
        self.bans.get(workspace, namespace, canonical, now)
    }

    pub(super) fn bans(&self) -> &Bans {
        &self.bans
    }

    pub(super) fn bans_mut(&mut self) -> &mut Bans {
        &mut self.bans
    }

    pub(super) fn stock(&self) -> &Stock {
        &self.stock
    }

    /// Puts what another worker has kept in the place of what is here; whether that changes anything.
    pub(super) fn replace(&mut self, mut stock: Stock) -> bool {
        stock.begin_anew();
        let changed = stock.compare(&self.stock, |target, was, is| self.index.change(target, was, is));
        self.stock = stock;
        self.settle();
        changed
    }

    #[cfg(test)]
    pub(super) fn work(&self) -> usize {
        self.index.work
    }
}
