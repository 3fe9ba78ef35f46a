//! The set of controls of a process, and how it follows the region's.
//!
//! Each change has its own revision. A control or deletion replaces one of the same target and [`Slot`](super::Slot) with a lower revision,
//! so frames may arrive twice, late or in any order. A set that is sent from scratch is collected separately and replaces the old one when
//! it is complete. The controls of another incarnation apply only in this way.

use super::bans::{Bans, Local, Named};
use super::index::{Banned, Found, Index, Scratch, Subject};
use super::log::{Entry, Log, Stored, ignore_change};
use super::{Control, Slot, Target};
use crate::model::key::Namespace;
use crate::model::time::{Now, UnixMs};
use crate::model::wire;
use core::net::IpAddr;

/// All controls, ready for lookups.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    log: Log,
    /// The set that is being received from scratch.
    incoming: Option<Log>,
    index: Index,
    bans: Bans,
    refused: u64,
}

impl Controls {
    /// Applies a frame. Returns whether controls or the known revision changed.
    pub fn apply(&mut self, frame: &wire::Controls) -> bool {
        if frame.incarnation == 0 {
            return false;
        }
        if frame.from_scratch {
            self.incoming = Some(Log::begin(frame));
        }
        let before = self.known();
        let mut changed = false;
        if self.log.incarnation == frame.incarnation {
            let on_change = |target: &Target, was, is| self.index.change(target, was, is);
            changed |= self.log.take(frame, &mut self.refused, on_change);
            // A set from scratch does not list what was deleted.
            if !frame.from_scratch && frame.as_of == 0 {
                self.log.complete(frame);
            }
        }
        if let Some(mut incoming) = self.incoming.take_if(|incoming| incoming.belongs(frame))
            && incoming.follows(frame)
        {
            incoming.take(frame, &mut 0, ignore_change);
            match incoming.complete(frame) {
                true => changed |= self.replace(incoming),
                false => self.incoming = Some(incoming),
            }
        }
        // Patterns and networks are rebuilt once for all frames of a set.
        if frame.complete_through != 0 {
            self.settle();
        }
        changed || before != self.known()
    }

    /// Applies patterns and networks of frames whose set is not complete yet; called at a tick.
    pub(super) fn settle(&mut self) {
        self.index.settle(&self.log);
    }

    /// Drops controls that expired long ago by `now` and by the sender's clock, as one of them may be wrong.
    pub fn drop_expired(&mut self, now: UnixMs) {
        self.log.drop_expired(now, |target, was, is| self.index.change(target, was, is));
        self.settle();
    }

    /// Hands over own bans that the region has in force; returns whether there were any.
    pub(super) fn take_over(&mut self) -> bool {
        let Controls { bans, index, .. } = self;
        !bans.is_empty()
            && bans
                .take_over(|namespace, canonical| index.named(namespace.workspace, namespace.name, canonical))
    }

    /// The revision up to which all was received, for the aggregator.
    pub fn known(&self) -> wire::ControlsKnown {
        self.log.known()
    }

    /// Number of entries that were refused as invalid or too many.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether there are no controls, so that no lookup is needed.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty() && self.bans.is_empty()
    }

    /// All controls in the order of targets, expired ones included.
    pub fn iter(&self) -> impl Iterator<Item = Control> + '_ {
        self.log.controls()
    }

    /// The live control of a subject at `now`.
    pub fn find(&self, subject: &Subject<'_>, now: UnixMs, scratch: &mut Scratch) -> Found {
        let mut found = self.index.find(subject, now, scratch);
        if !found.exempt && !self.bans.is_empty() {
            let Subject { workspace, namespace, canonical, .. } = *subject;
            let namespace = Namespace { workspace, name: namespace };
            let own = self.bans.until(namespace, canonical, now).map(Banned::Until);
            found.ban = found.ban.max(own);
        }
        found
    }

    /// The control that [`Controls::find`] applies in a slot, for operators: it scans all controls. `None` for a ban that a rule of this
    /// process made.
    pub fn source(
        &self,
        subject: &Subject<'_>,
        slot: Slot,
        now: UnixMs,
        scratch: &mut Scratch,
    ) -> Option<Control> {
        let revision = self.index.revision(subject, slot, now, scratch)?;
        self.log.of_revision(revision)
    }

    /// The state of a rule's shadow switch, if there is one.
    pub fn shadow(&self, workspace: &str, rule: &str, now: UnixMs) -> Option<bool> {
        self.index.shadow(workspace, rule, now)
    }

    /// Whether a rule of this workspace has a shadow switch.
    pub fn has_shadows(&self, workspace: &str) -> bool {
        self.index.has_shadows(workspace)
    }

    /// Whether clients' addresses matter in this workspace.
    pub fn has_networks(&self, workspace: &str) -> bool {
        self.index.has_networks(workspace)
    }

    /// Of the networks for all namespaces, the longest prefix that contains an address, and whether it is banned.
    pub fn network(&self, workspace: &str, address: IpAddr, now: UnixMs) -> Option<(u8, bool)> {
        self.index.network(workspace, address, now)
    }

    /// Whether the address of a subject is exempt, whatever the identifier.
    pub fn exempts_address(&self, subject: &Subject<'_>, now: UnixMs) -> bool {
        self.index.exempts_address(subject, now)
    }

    /// Whether an identifier or a pattern is banned in a namespace.
    pub fn bans_some(&self, workspace: &str, namespace: &str, now: UnixMs) -> bool {
        let of = Namespace { workspace, name: namespace };
        self.index.bans_some(workspace, namespace, now) || self.bans.deny_some(of, now)
    }

    /// Adds a ban of a rule of this process; see [`Local`]. Returns whether anything changed.
    pub fn ban_here(&mut self, namespace: Namespace<&str>, canonical: &[u8], ban: Local, now: Now) -> bool {
        self.bans.put(namespace, canonical, ban, now)
    }

    /// The region's ban of exactly this identifier in exactly this namespace, expired or not; `None` if there is none.
    pub fn named(&self, namespace: Namespace<&str>, canonical: &[u8]) -> Option<Banned> {
        self.index.named(namespace.workspace, namespace.name, canonical)
    }

    /// Bans of rules of this process that are in force and that the region does not have.
    pub fn open_bans(&self, now: UnixMs) -> impl Iterator<Item = Named<'_>> {
        self.bans.open(now)
    }

    /// Grows with each change of the process' own bans.
    pub fn bans_version(&self) -> u64 {
        self.bans.version()
    }

    /// The last ban of an identifier, wherever it was made.
    pub fn banned_here(&self, namespace: Namespace<&str>, canonical: &[u8], now: Now) -> Option<Local> {
        self.bans.get(namespace, canonical, now)
    }

    pub(super) fn bans(&self) -> &Bans {
        &self.bans
    }

    pub(super) fn bans_mut(&mut self) -> &mut Bans {
        &mut self.bans
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// Adds an entry of the database.
    pub(super) fn put(&mut self, entry: &Entry) {
        let Controls { log, index, .. } = self;
        log.insert(entry, |target, was, is| index.change(target, was, is));
    }

    /// Notes that all up to a revision was added.
    pub(super) fn complete_through(&mut self, known: wire::ControlsKnown) {
        self.log.complete_through(known);
        self.settle();
    }

    /// Drops entries that are over.
    pub(super) fn drop_where(&mut self, over: impl Fn(&Stored) -> bool) {
        let Controls { log, index, .. } = self;
        log.drop_where(over, |target, was, is| index.change(target, was, is));
        self.settle();
    }

    /// Replaces the set by one that another worker stored; returns whether anything changed.
    pub(super) fn replace(&mut self, mut log: Log) -> bool {
        log.begin_anew();
        let changed = log.compare(&self.log, |target, was, is| self.index.change(target, was, is));
        self.log = log;
        self.settle();
        changed
    }

    #[cfg(test)]
    pub(super) fn work(&self) -> usize {
        self.index.work
    }
}
