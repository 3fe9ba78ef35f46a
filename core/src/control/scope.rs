//! The controls of one scope (a namespace, or all of a workspace), arranged for lookups.
//!
//! Exact identifiers are in a map, so that a change is cheap: clients can cause many, by rules with a ban. Patterns of a slot share one
//! automaton, and networks a sorted list. These are rebuilt after a change, which only operators make.

use super::{Effect, Selector, Slot, Target};
use crate::matching::canonical::{DIGEST_BYTES, DIGEST_PREFIX, canonical_identifier};
use crate::matching::glob::{self, Glob, GlobSet, Pattern};
use crate::matching::networks::Networks;
use crate::model::time::UnixMs;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::BuildHasherDefault;
use core::net::IpAddr;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// A control without its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlBody {
    pub effect: Effect,
    pub window_ms: Option<u64>,
    pub expires: Option<UnixMs>,
    pub revision: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// By canonical identifier: overrides, credits and resets, those that win first.
    exact: ExactMap,
    /// How many bans are among them.
    exact_bans: usize,
    overrides: Option<GlobSet<ControlBody>>,
    credits: Option<GlobSet<ControlBody>>,
    resets: Option<GlobSet<ControlBody>>,
    networks: Networks<ControlBody>,
}

/// A part of a scope that is built as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// The patterns of a slot.
    Patterns(Slot),
    /// All networks.
    Networks,
}

/// A fixed hash key is safe here: clients only cause lookups. Operators insert entries, and rules insert banned identifiers, which are few.
type ExactMap = HashMap<Box<[u8]>, Vec<ControlBody>, BuildHasherDefault<SipHasher13>>;

impl ControlBody {
    #[inline]
    pub fn counts(&self, slot: Slot, window_ms: u64, now: UnixMs) -> bool {
        self.effect.slot() == slot
            && self.window_ms.is_none_or(|ms| ms == window_ms)
            && self.expires.is_none_or(|expires| now < expires)
    }

    /// The order of precedence, highest first.
    fn rank(&self) -> impl Ord + use<> {
        (self.effect != Effect::Ban, self.window_ms.is_none(), Reverse(self.revision))
    }
}

impl Scope {
    pub fn is_empty(&self) -> bool {
        let patterns = [&self.overrides, &self.credits, &self.resets];
        self.exact.is_empty() && self.networks.is_empty() && patterns.iter().all(|globs| globs.is_none())
    }

    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether an identifier or a pattern is banned.
    pub fn bans_some(&self, now: UnixMs) -> bool {
        // A ban is for all windows.
        let bans =
            |control: &ControlBody| control.effect == Effect::Ban && control.counts(Slot::Override, 0, now);
        (self.exact_bans > 0 && self.exact.values().flatten().any(bans))
            || self.overrides.as_ref().is_some_and(|globs| globs.values().any(bans))
    }

    /// The control of an exact identifier in one slot.
    #[inline]
    pub fn exact(&self, canonical: &[u8], counts: impl Fn(&ControlBody) -> bool) -> Option<ControlBody> {
        self.exact.get(canonical)?.iter().copied().find(|control| counts(control))
    }

    /// The control of the first matching pattern.
    #[inline]
    pub fn pattern(
        &self,
        slot: Slot,
        raw: &[u8],
        counts: impl Fn(&ControlBody) -> bool,
        scratch: &mut glob::Scratch,
    ) -> Option<ControlBody> {
        let globs = match slot {
            Slot::Override => &self.overrides,
            Slot::Credit => &self.credits,
            _ => &self.resets,
        };
        globs.as_ref()?.find(raw, counts, scratch)
    }

    /// The control of the smallest network that contains an address, and the length of its prefix.
    #[inline]
    pub fn network(
        &self,
        address: IpAddr,
        counts: impl Fn(&ControlBody) -> bool,
    ) -> Option<(u8, ControlBody)> {
        self.networks.find(address, counts)
    }

    /// Replaces the control of an exact identifier.
    pub fn change(&mut self, canonical: Box<[u8]>, before: Option<ControlBody>, after: Option<ControlBody>) {
        let is_ban = |control: &ControlBody| usize::from(control.effect == Effect::Ban);
        self.exact_bans = self.exact_bans.saturating_add(after.as_ref().map_or(0, is_ban));
        let Some(all) = self.exact.get_mut(&canonical) else {
            if let Some(after) = after {
                self.exact.insert(canonical, Vec::from([after]));
            }
            return;
        };
        if let Some(at) = before.and_then(|before| all.iter().position(|control| *control == before)) {
            self.exact_bans = self.exact_bans.saturating_sub(is_ban(&all.remove(at)));
        }
        if let Some(after) = after {
            let at = all.partition_point(|control| control.rank() <= after.rank());
            all.insert(at, after);
        }
        if all.is_empty() {
            self.exact.remove(&canonical);
        }
    }

    /// Builds a part from all controls of this scope.
    pub fn build<'a>(&mut self, part: Part, controls: impl Iterator<Item = (&'a Target, ControlBody)>) {
        match part {
            Part::Networks => {
                let network = |(target, control): (&Target, ControlBody)| match target.selector {
                    Selector::Network(network) => Some((network, control)),
                    _ => None,
                };
                self.networks = Networks::build(controls.filter_map(network));
            }
            Part::Patterns(slot) => {
                let of_slot = controls.filter(|(_, control)| control.effect.slot() == slot);
                let globs =
                    build_globs(slot, of_slot.filter_map(|(target, control)| Some((glob(target)?, control))));
                match slot {
                    Slot::Override => self.overrides = globs,
                    Slot::Credit => self.credits = globs,
                    _ => self.resets = globs,
                }
            }
        }
    }
}

fn glob(target: &Target) -> Option<Glob> {
    let Selector::Identifier(text) = &target.selector else { return None };
    // Most identifiers are exact; without a star they need not be parsed as patterns.
    let text = Some(text.as_bytes()).filter(|text| memchr::memchr(b'*', text).is_some())?;
    match Pattern::parse(text)? {
        Pattern::Glob(glob) => Some(glob),
        Pattern::Exact(_) => None,
    }
}

/// Whether an identifier or a pattern names a raw identifier.
pub(super) fn names(text: &str, raw: &[u8]) -> bool {
    match Pattern::parse(text.as_bytes()) {
        Some(Pattern::Exact(exact)) => canonical(exact) == canonical(raw.into()),
        Some(Pattern::Glob(glob)) => {
            let set = GlobSet::build(Vec::from([(glob, ())]));
            set.is_some_and(|set| set.find(raw, |()| true, &mut glob::Scratch::default()).is_some())
        }
        None => false,
    }
}

fn build_globs(slot: Slot, globs: impl Iterator<Item = (Glob, ControlBody)>) -> Option<GlobSet<ControlBody>> {
    let mut globs: Vec<(Glob, ControlBody)> = globs.collect();
    if globs.is_empty() {
        return None;
    }
    globs.sort_by_key(|(_, control)| control.rank());
    // Ten thousand patterns of the greatest length fit the automaton's bound.
    if slot == Slot::Reset { GlobSet::in_order(&globs) } else { GlobSet::build(globs) }
}

/// The canonical form of an exact identifier; a digest is used as it is.
pub(super) fn canonical(raw: Box<[u8]>) -> Box<[u8]> {
    if raw.len() == DIGEST_BYTES && raw.starts_with(DIGEST_PREFIX) {
        return raw;
    }
    let mut identifier = Vec::new();
    canonical_identifier(&raw, &mut identifier);
    identifier.into()
}
