//! Bans that rules of this process made themselves, so that they hold although nobody else has heard of them; and what there is
//! to remember of bans for the next one in a row.
//!
//! Each ban of an identifier has a mark that is higher than those of the bans before it, so workers may tell each other in any
//! order. Once the region has the ban of the same identifier in force, that one counts: it can be lifted, and this one cannot.
//!
//! Leaves to others: when a rule bans and for how long, and telling the region.

use super::{Banned, Control, Effect, Who};
use crate::matching::glob::Pattern;
use crate::model::key::MAX_TEXT_BYTES;
use crate::model::time::UnixMs;
use crate::model::wire;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use prost::Message;

/// Most bans that a process keeps of its own. When there are more, some are let go: first those that deny no longer, then those
/// that end first.
pub const MAX_BANS: usize = 4_096;
/// So many are let go at a time, as finding them takes a walk over all.
const LET_GO: usize = MAX_BANS / 8;

const LAYOUT: u8 = 1;

/// The last ban of an identifier, as a process knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Local {
    /// Tells it from the identifier's bans before it, all of which have a lower one; not before it ends.
    pub mark: UnixMs,
    /// Which ban in a row it is, from 1.
    pub level: u32,
    /// Until when it denies; 0 if somebody else made it, so that it is not this process' to deny by it.
    pub until: UnixMs,
    /// When it was made.
    pub since: UnixMs,
    /// Until when it is remembered, for the next one; at least [`Local::mark`].
    pub remembered: UnixMs,
    /// The region has taken it over, so it denies no longer by itself.
    pub taken_over: bool,
}

impl Local {
    /// This process made it, and denies by it until its end.
    fn is_ours(&self) -> bool {
        !self.taken_over && self.until > UnixMs(0)
    }

    /// It denies now, whatever the region says.
    pub fn denies(&self, now: UnixMs) -> bool {
        !self.taken_over && now < self.until
    }
}

/// A ban, with whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Whose limits.
    pub workspace: &'a str,
    /// Of which namespace.
    pub namespace: &'a str,
    /// In canonical form.
    pub identifier: &'a [u8],
    /// The ban.
    pub ban: Local,
}

/// By workspace, namespace and canonical identifier. Identifiers are what clients send, so they are not hashed by a fixed key.
type ByName = BTreeMap<Box<str>, BTreeMap<Box<str>, BTreeMap<Box<[u8]>, Local>>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Bans {
    by_name: ByName,
    count: usize,
    version: u64,
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
    cached_ms: u64,
    #[prost(bool, tag = "9")]
    taken_over: bool,
}

impl Bans {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Grows whenever something changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Until when an identifier is denied.
    pub fn until(&self, workspace: &str, namespace: &str, canonical: &[u8], now: UnixMs) -> Option<UnixMs> {
        let ban = self.by_name.get(workspace)?.get(namespace)?.get(canonical)?;
        ban.denies(now).then_some(ban.until)
    }

    /// What is remembered of an identifier.
    pub fn get(&self, workspace: &str, namespace: &str, canonical: &[u8], now: UnixMs) -> Option<Local> {
        let ban = self.by_name.get(workspace)?.get(namespace)?.get(canonical).copied()?;
        (now < ban.remembered).then_some(ban)
    }

    /// Those that deny now.
    pub fn open(&self, now: UnixMs) -> impl Iterator<Item = Named<'_>> {
        self.all().filter(move |open| open.ban.denies(now))
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

    /// Takes a ban; whether that changes anything.
    pub fn put(
        &mut self,
        (workspace, namespace): (&str, &str),
        canonical: &[u8],
        ban: Local,
        now: UnixMs,
    ) -> bool {
        let short = [workspace.len(), namespace.len(), canonical.len()].iter().all(|n| *n <= MAX_TEXT_BYTES);
        let ban = Local { remembered: ban.remembered.max(ban.mark), ..ban };
        if !short || ban.remembered <= now {
            return false;
        }
        if let Some(known) = self.get_mut(workspace, namespace, canonical) {
            // A taken-over one sorts above the same that is not.
            let changes = ban > *known;
            *known = ban.max(*known);
            self.version = self.version.wrapping_add(u64::from(changes));
            return changes;
        }
        if self.count >= MAX_BANS {
            self.make_room(now);
        }
        let namespaces = self.by_name.entry(workspace.into()).or_default();
        namespaces.entry(namespace.into()).or_default().insert(canonical.into(), ban);
        self.count = self.count.saturating_add(1);
        self.version = self.version.wrapping_add(1);
        true
    }

    /// Bans that the region has in force for exactly these identifiers, and that end no earlier, count from now on. `named`
    /// says how long it bans. Whether that concerns any.
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
        self.version = self.version.wrapping_add(u64::from(changed));
        changed
    }

    /// The same of bans that the region had in force until somebody lifted them. `known` is what was known of the region before
    /// this frame: what is older than that has been heard of.
    pub fn lift(&mut self, frame: &wire::Controls, known: wire::ControlsKnown) -> bool {
        if self.is_empty() || frame.incarnation == 0 || frame.incarnation != known.incarnation {
            return false;
        }
        let mut changed = false;
        for entry in frame.entries.iter().filter(|entry| entry.deleted && entry.revision > known.revision) {
            let Ok(control) = Control::from_wire(entry) else { continue };
            let Who::Identifier(text) = &control.target.who else { continue };
            let Some(Pattern::Exact(raw)) = Pattern::parse(text.as_bytes()) else { continue };
            let (workspace, namespace) = (&control.target.workspace, &control.target.scope);
            if control.effect == Effect::Ban
                && let Some(ban) = self.get_mut(workspace, namespace, &super::scope::canonical(raw))
                && Banned::from(control.expires) >= Banned::Until(ban.until)
            {
                changed |= !core::mem::replace(&mut ban.taken_over, true);
            }
        }
        self.version = self.version.wrapping_add(u64::from(changed));
        changed
    }

    /// Lets those go of which nothing need be remembered any more; whether there were any.
    pub fn forget(&mut self, now: UnixMs) -> bool {
        self.retain(|ban| now < ban.remembered)
    }

    /// Takes over what another worker knows; whether that changes anything.
    pub fn merge(&mut self, bytes: &[u8], now: UnixMs) -> bool {
        let Some((&LAYOUT, bytes)) = bytes.split_first() else { return false };
        let Ok(stored) = Stored::decode(bytes) else { return false };
        let mut changed = false;
        for stored in stored.bans {
            let ban = Local {
                mark: UnixMs(stored.mark_ms),
                level: stored.level,
                until: UnixMs(stored.until_ms),
                since: UnixMs(stored.since_ms),
                remembered: UnixMs(stored.cached_ms),
                taken_over: stored.taken_over,
            };
            changed |= self.put((&stored.workspace, &stored.namespace), &stored.identifier, ban, now);
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
            cached_ms: ban.remembered.0,
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

    /// Lets those go that are worth least.
    fn make_room(&mut self, now: UnixMs) {
        self.forget(now);
        if self.count < MAX_BANS {
            return;
        }
        let worth = |ban: &Local| (ban.denies(now), *ban);
        let mut worths: Vec<_> = self.all().map(|named| worth(&named.ban)).collect();
        let (_, least, _) = worths.select_nth_unstable(LET_GO - 1);
        let least = *least;
        let mut left = LET_GO;
        self.retain(|ban| {
            let goes = left > 0 && worth(ban) <= least;
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
