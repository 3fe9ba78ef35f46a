//! Bans that rules of this process made. They apply at once, before the region has them, and store what the next ban's duration needs.
//!
//! Each ban of an identifier has a higher mark than the bans before it, so workers can merge them in any order. Once the region has a ban of
//! the same identifier in force, the region's applies instead, since an operator can lift it.

use super::{Banned, Control, Effect, Selector};
use crate::matching::glob::Pattern;
use crate::model::key::{MAX_TEXT_BYTES, Namespace};
use crate::model::named::NamedMap;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::wire;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use prost::Message;

/// Most bans of a process. Beyond that those that deny no more are dropped, and further ones are refused: no ban ends because
/// of others.
pub const MAX_BANS: usize = 4_096;
/// Most bans that merging may lead to. Workers of a process may each fill the last places at the same time.
const MAX_MERGED: usize = 2 * MAX_BANS;
/// Number of bans that are dropped at once, as finding them takes a scan of all.
const LET_GO: usize = MAX_BANS / 8;

const LAYOUT: u8 = 2;

/// The last ban of an identifier in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Local {
    /// Higher than the marks of the identifier's earlier bans, and not before this ban's end.
    pub mark: UnixMs,
    /// Number of consecutive bans, from 1.
    pub level: u32,
    /// Until when it denies; 0 if it was made elsewhere, so that this process does not deny by it.
    pub until: UnixMs,
    /// When it was made.
    pub since: UnixMs,
    /// Until when it is stored, for the next ban's duration, and at least until [`Local::mark`]. By the clock by which violations
    /// age: with the ban, the violations that led to it would count again.
    pub kept_until: MonoMs,
    /// The region has it in force, so it no longer denies by itself.
    pub taken_over: bool,
}

impl Local {
    /// Whether this process made it.
    fn is_ours(&self) -> bool {
        !self.taken_over && self.until > UnixMs(0)
    }

    /// Whether it is stored.
    fn is_kept(&self, now: Now) -> bool {
        now.mono < self.kept_until || now.unix < self.mark
    }

    /// Whether it denies now by itself.
    pub fn denies(&self, now: UnixMs) -> bool {
        !self.taken_over && now < self.until
    }
}

/// A ban and its identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The workspace.
    pub workspace: &'a str,
    /// The namespace.
    pub namespace: &'a str,
    /// The canonical identifier.
    pub identifier: &'a [u8],
    /// The ban.
    pub ban: Local,
}

impl<'a> Named<'a> {
    fn of(namespace: Namespace<&'a str>, identifier: &'a [u8], ban: &Local) -> Named<'a> {
        let Namespace { workspace, name } = namespace;
        Named { workspace, namespace: name, identifier, ban: *ban }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Bans {
    /// By canonical identifier.
    bans: NamedMap<Box<[u8]>, Local>,
    version: u64,
    /// Every ban denies until then, so that a scan would find none to drop.
    full_until: UnixMs,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Stored {
    #[prost(message, repeated, tag = "1")]
    bans: Vec<StoredBan>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredBan {
    #[prost(string, tag = "1")]
    workspace: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(bytes = "vec", tag = "3")]
    identifier: Vec<u8>,
    #[prost(uint64, tag = "4")]
    mark_ms: u64,
    #[prost(uint32, tag = "5")]
    level: u32,
    #[prost(uint64, tag = "6")]
    until_ms: u64,
    #[prost(uint64, tag = "7")]
    since_ms: u64,
    #[prost(uint64, tag = "8")]
    kept_until_mono_ms: u64,
    #[prost(bool, tag = "9")]
    taken_over: bool,
}

impl Bans {
    pub fn is_empty(&self) -> bool {
        self.bans.is_empty()
    }

    /// Grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Until when an identifier is denied.
    pub fn until(&self, namespace: Namespace<&str>, canonical: &[u8], now: UnixMs) -> Option<UnixMs> {
        self.bans.get(namespace, canonical).filter(|ban| ban.denies(now)).map(|ban| ban.until)
    }

    /// Whether any identifier of a namespace is denied.
    pub fn deny_some(&self, namespace: Namespace<&str>, now: UnixMs) -> bool {
        self.bans.values(namespace).any(|ban| ban.denies(now))
    }

    /// The last ban of an identifier.
    pub fn get(&self, namespace: Namespace<&str>, canonical: &[u8], now: Now) -> Option<Local> {
        self.bans.get(namespace, canonical).copied().filter(|ban| ban.is_kept(now))
    }

    /// The bans that deny now, in turn of each workspace and there of each namespace: of each come as many as of every other one.
    pub fn open(&self, now: UnixMs) -> impl Iterator<Item = Named<'_>> {
        let open = self.bans.in_turn(move |ban| ban.denies(now));
        open.map(|(namespace, identifier, ban)| Named::of(namespace, identifier, ban))
    }

    /// Adds a ban that this worker made; returns whether anything changed. It is refused if there is no place for it.
    pub fn put(&mut self, namespace: Namespace<&str>, canonical: &[u8], ban: Local, now: Now) -> bool {
        let is_known = self.bans.get(namespace, canonical).is_some();
        (is_known || self.has_place(namespace, now)) && self.merge_one(namespace, canonical, ban, now)
    }

    fn merge_one(&mut self, namespace: Namespace<&str>, canonical: &[u8], ban: Local, now: Now) -> bool {
        let lengths = [namespace.workspace.len(), namespace.name.len(), canonical.len()];
        if lengths.iter().any(|length| *length > MAX_TEXT_BYTES) || !ban.is_kept(now) {
            return false;
        }
        if self.bans.get(namespace, canonical).is_none() {
            if self.bans.held(namespace).all >= MAX_MERGED {
                return false;
            }
            // The next place may be free from the end of this one.
            self.full_until = if ban.denies(now.unix) { self.full_until.min(ban.until) } else { UnixMs(0) };
        }
        // The same ban after the region has it sorts above the one before.
        let changes = self.bans.raise(namespace, canonical, ban);
        self.version = self.version.wrapping_add(u64::from(changes));
        changes
    }

    /// Hands over to the region the bans that it has in force for exactly these identifiers and no shorter. `named` returns the region's
    /// ban. Returns whether there were any.
    pub fn take_over(&mut self, named: impl Fn(Namespace<&str>, &[u8]) -> Option<Banned>) -> bool {
        let mut changed = false;
        for (namespace, identifier, ban) in self.bans.iter_mut().filter(|(.., ban)| ban.is_ours()) {
            if named(namespace, identifier).is_some_and(|banned| banned >= Banned::Until(ban.until)) {
                (ban.taken_over, changed) = (true, true);
            }
        }
        self.handed_over(changed)
    }

    /// The same for bans that the region had in force until they were lifted. `known` is the revision before this frame: older changes
    /// were received already.
    pub fn lift(&mut self, frame: &wire::Controls, known: wire::ControlsKnown) -> bool {
        if self.is_empty() || frame.incarnation == 0 || frame.incarnation != known.incarnation {
            return false;
        }
        let mut changed = false;
        for entry in frame.entries.iter().filter(|entry| entry.deleted && entry.revision > known.revision) {
            let Ok(control) = Control::from_wire(entry) else { continue };
            let Selector::Identifier(text) = &control.target.selector else { continue };
            let Some(Pattern::Exact(raw)) = Pattern::parse(text.as_bytes()) else { continue };
            let namespace = Namespace { workspace: &*control.target.workspace, name: &control.target.scope };
            if control.effect == Effect::Ban
                && let Some(ban) = self.bans.get_mut(namespace, &*super::scope::canonical(raw))
                && Banned::from(control.expires) >= Banned::Until(ban.until)
            {
                changed |= !core::mem::replace(&mut ban.taken_over, true);
            }
        }
        self.handed_over(changed)
    }

    fn handed_over(&mut self, changed: bool) -> bool {
        if changed {
            self.full_until = UnixMs(0);
        }
        self.version = self.version.wrapping_add(u64::from(changed));
        changed
    }

    /// Drops bans that are no longer needed; returns whether there were any.
    pub fn drop_expired(&mut self, now: Now) -> bool {
        self.retain(|ban| ban.is_kept(now))
    }

    /// Merges the bans of another worker; returns whether anything changed.
    pub fn merge(&mut self, bytes: &[u8], now: Now) -> bool {
        let Some((&LAYOUT, bytes)) = bytes.split_first() else { return false };
        let Ok(stored) = Stored::decode(bytes) else { return false };
        let mut changed = false;
        for stored in stored.bans {
            let ban = Local {
                mark: UnixMs(stored.mark_ms),
                level: stored.level,
                until: UnixMs(stored.until_ms),
                since: UnixMs(stored.since_ms),
                kept_until: MonoMs(stored.kept_until_mono_ms),
                taken_over: stored.taken_over,
            };
            let namespace = Namespace { workspace: &*stored.workspace, name: &stored.namespace };
            changed |= self.merge_one(namespace, &stored.identifier, ban, now);
        }
        changed
    }

    pub fn encode(&self) -> Vec<u8> {
        let stored = |Named { workspace, namespace, identifier, ban }: Named<'_>| StoredBan {
            workspace: workspace.into(),
            namespace: namespace.into(),
            identifier: identifier.to_vec(),
            mark_ms: ban.mark.0,
            level: ban.level,
            until_ms: ban.until.0,
            since_ms: ban.since.0,
            kept_until_mono_ms: ban.kept_until.0,
            taken_over: ban.taken_over,
        };
        let all = self.bans.iter().map(|(namespace, identifier, ban)| Named::of(namespace, identifier, ban));
        let bans = all.map(stored).collect();
        let mut bytes = Vec::from([LAYOUT]);
        // Writing to memory cannot fail.
        let _ = Stored { bans }.encode(&mut bytes);
        bytes
    }

    /// Whether there is a place for another ban in a namespace, after dropping some that deny no more if need be.
    fn has_place(&mut self, namespace: Namespace<&str>, now: Now) -> bool {
        let admits = |bans: &Bans| bans.bans.held(namespace).has_place(MAX_BANS);
        if admits(self) {
            return true;
        }
        self.make_room(now);
        admits(self)
    }

    /// Drops bans that deny no more: first those that are needed no longer, then those that end first.
    fn make_room(&mut self, now: Now) {
        if now.unix < self.full_until || self.drop_expired(now) {
            return;
        }
        let mut worths: Vec<Local> =
            self.bans.iter().map(|(.., ban)| *ban).filter(|ban| !ban.denies(now.unix)).collect();
        if worths.is_empty() {
            let ends = self.bans.iter().map(|(.., ban)| ban.until).min();
            self.full_until = ends.unwrap_or_default();
            return;
        }
        let mut left = LET_GO.min(worths.len());
        let (_, least, _) = worths.select_nth_unstable(left.saturating_sub(1));
        let least = *least;
        self.retain(|ban| {
            let goes = left > 0 && !ban.denies(now.unix) && *ban <= least;
            left = left.saturating_sub(usize::from(goes));
            !goes
        });
    }

    fn retain(&mut self, keep: impl FnMut(&Local) -> bool) -> bool {
        let dropped = self.bans.retain(keep);
        self.version = self.version.wrapping_add(u64::from(dropped));
        dropped
    }
}
