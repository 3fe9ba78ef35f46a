//! Bans that rules of this process made. They apply at once, before the region has them, and store what the next ban's duration needs.
//!
//! Each ban of an identifier has a higher mark than the bans before it, so workers can merge them in any order. Once the region has a ban of
//! the same identifier in force, the region's applies instead, since an operator can lift it.

use super::{Banned, Control, Effect, Selector};
use crate::matching::glob::Pattern;
use crate::model::key::MAX_TEXT_BYTES;
use crate::model::room::Held;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::wire;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
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

/// One item of each of several queues in turn.
struct InTurn<I>(VecDeque<I>);

impl<I: Iterator> Iterator for InTurn<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        while let Some(mut queue) = self.0.pop_front() {
            if let Some(item) = queue.next() {
                self.0.push_back(queue);
                return Some(item);
            }
        }
        None
    }
}

/// By workspace, namespace and canonical identifier. Clients choose identifiers, so a map with a fixed hash key is not used.
type ByName = BTreeMap<Box<str>, BTreeMap<Box<str>, BTreeMap<Box<[u8]>, Local>>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Bans {
    by_name: ByName,
    count: usize,
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
        self.count == 0
    }

    /// Grows with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Until when an identifier is denied.
    pub fn until(&self, workspace: &str, namespace: &str, canonical: &[u8], now: UnixMs) -> Option<UnixMs> {
        let ban = self.by_name.get(workspace)?.get(namespace)?.get(canonical)?;
        ban.denies(now).then_some(ban.until)
    }

    /// Whether any identifier of a namespace is denied.
    pub fn deny_some(&self, workspace: &str, namespace: &str, now: UnixMs) -> bool {
        let of_namespace = self.by_name.get(workspace).and_then(|namespaces| namespaces.get(namespace));
        of_namespace.is_some_and(|identifiers| identifiers.values().any(|ban| ban.denies(now)))
    }

    /// The last ban of an identifier.
    pub fn get(&self, workspace: &str, namespace: &str, canonical: &[u8], now: Now) -> Option<Local> {
        let ban = self.by_name.get(workspace)?.get(namespace)?.get(canonical).copied()?;
        ban.is_kept(now).then_some(ban)
    }

    /// The bans that deny now, in turn of each workspace and there of each namespace: of each come as many as of every other one.
    pub fn open(&self, now: UnixMs) -> impl Iterator<Item = Named<'_>> {
        let in_turn = self.by_name.iter().map(move |(workspace, namespaces)| {
            let of_workspace = namespaces.iter().map(move |(namespace, identifiers)| {
                let open = identifiers.iter().filter(move |(_, ban)| ban.denies(now));
                open.map(move |(identifier, ban)| Named { workspace, namespace, identifier, ban: *ban })
            });
            InTurn(of_workspace.collect())
        });
        InTurn(in_turn.collect())
    }

    fn all(&self) -> impl Iterator<Item = Named<'_>> {
        self.by_name.iter().flat_map(|(workspace, namespaces)| {
            namespaces.iter().flat_map(move |(namespace, identifiers)| {
                identifiers.iter().map(move |(identifier, ban)| Named {
                    workspace,
                    namespace,
                    identifier,
                    ban: *ban,
                })
            })
        })
    }

    /// Adds a ban that this worker made; returns whether anything changed. It is refused if there is no place for it.
    pub fn put(&mut self, names: (&str, &str), canonical: &[u8], ban: Local, now: Now) -> bool {
        let is_known = self.get_mut(names.0, names.1, canonical).is_some();
        (is_known || self.has_place(names, now)) && self.merge_one(names, canonical, ban, now)
    }

    fn merge_one(
        &mut self,
        (workspace, namespace): (&str, &str),
        canonical: &[u8],
        ban: Local,
        now: Now,
    ) -> bool {
        let short = [workspace.len(), namespace.len(), canonical.len()].iter().all(|n| *n <= MAX_TEXT_BYTES);
        if !short || !ban.is_kept(now) {
            return false;
        }
        if let Some(stored) = self.get_mut(workspace, namespace, canonical) {
            // The same ban after the region has it sorts above the one before.
            let changes = ban > *stored;
            *stored = ban.max(*stored);
            self.version = self.version.wrapping_add(u64::from(changes));
            return changes;
        }
        if self.count >= MAX_MERGED {
            return false;
        }
        let namespaces = self.by_name.entry(workspace.into()).or_default();
        namespaces.entry(namespace.into()).or_default().insert(canonical.into(), ban);
        self.count = self.count.saturating_add(1);
        self.version = self.version.wrapping_add(1);
        // The next place may be free from the end of this one.
        self.full_until = if ban.denies(now.unix) { self.full_until.min(ban.until) } else { UnixMs(0) };
        true
    }

    /// Hands over to the region the bans that it has in force for exactly these identifiers and no shorter. `named` returns the region's
    /// ban. Returns whether there were any.
    pub fn take_over(&mut self, named: impl Fn(&str, &str, &[u8]) -> Option<Banned>) -> bool {
        let mut changed = false;
        for (workspace, namespaces) in &mut self.by_name {
            for (namespace, identifiers) in namespaces {
                for (identifier, ban) in identifiers.iter_mut().filter(|(_, ban)| ban.is_ours()) {
                    let banned = named(workspace, namespace, identifier);
                    if banned.is_some_and(|banned| banned >= Banned::Until(ban.until)) {
                        (ban.taken_over, changed) = (true, true);
                    }
                }
            }
        }
        if changed {
            self.full_until = UnixMs(0);
        }
        self.version = self.version.wrapping_add(u64::from(changed));
        changed
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
            let (workspace, namespace) = (&control.target.workspace, &control.target.scope);
            if control.effect == Effect::Ban
                && let Some(ban) = self.get_mut(workspace, namespace, &super::scope::canonical(raw))
                && Banned::from(control.expires) >= Banned::Until(ban.until)
            {
                changed |= !core::mem::replace(&mut ban.taken_over, true);
            }
        }
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
            changed |= self.merge_one((&stored.workspace, &stored.namespace), &stored.identifier, ban, now);
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
        let bans = self.all().map(stored).collect();
        let mut bytes = Vec::from([LAYOUT]);
        // Writing to memory cannot fail.
        let _ = Stored { bans }.encode(&mut bytes);
        bytes
    }

    fn get_mut(&mut self, workspace: &str, namespace: &str, canonical: &[u8]) -> Option<&mut Local> {
        self.by_name.get_mut(workspace)?.get_mut(namespace)?.get_mut(canonical)
    }

    /// Whether there is a place for another ban in a namespace, after dropping some that deny no more if need be.
    fn has_place(&mut self, (workspace, namespace): (&str, &str), now: Now) -> bool {
        let admits = |bans: &Bans| {
            let namespaces = bans.by_name.get(workspace);
            let held = Held {
                all: bans.count,
                of_workspace: namespaces.map_or(0, |all| all.values().map(BTreeMap::len).sum()),
                of_namespace: namespaces.and_then(|all| all.get(namespace)).map_or(0, BTreeMap::len),
            };
            held.has_place(MAX_BANS)
        };
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
            self.all().map(|named| named.ban).filter(|ban| !ban.denies(now.unix)).collect();
        if worths.is_empty() {
            let ends = self.all().map(|named| named.ban.until).min();
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

    fn retain(&mut self, mut keep: impl FnMut(&Local) -> bool) -> bool {
        let before = self.count;
        let mut count = 0_usize;
        self.by_name.retain(|_, namespaces| {
            namespaces.retain(|_, identifiers| {
                identifiers.retain(|_, ban| keep(ban));
                count = count.saturating_add(identifiers.len());
                !identifiers.is_empty()
            });
            !namespaces.is_empty()
        });
        self.count = count;
        self.version = self.version.wrapping_add(u64::from(count < before));
        count < before
    }
}
