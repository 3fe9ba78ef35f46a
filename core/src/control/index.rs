//! Lookups of live control, and its precedence.
//!
//! Of limits, exemptions and bans one applies. An exact identifier comes before a pattern, and a pattern before a network. Among patterns
//! the one with most literal characters applies, among networks the longest prefix. At each of these steps the namespace's own controls
//! come before those of all namespaces. Among equals a ban comes first, then a control of this window, then the newest. Credits are found
//! in the same way. Of resets the newest applies.
//!
//! Expired controls are skipped, so that controls which they hid apply again. Lookups do not allocate.

use super::log::Log;
use super::scope::{ControlBody, Part, Scope, canonical};
use super::{ALL_NAMESPACES, Effect, Selector, Slot, Target};
use crate::matching::glob::{self, Pattern};
use crate::model::exact::Algorithm;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

/// Memory for lookups, one for each worker.
#[derive(Debug, Default)]
pub struct Scratch(glob::Scratch);

/// The subject of a lookup: a request under a rule.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The workspace.
    pub workspace: &'a str,
    /// The rule's namespace.
    pub namespace: &'a str,
    /// The raw identifier.
    pub raw: &'a [u8],
    /// The canonical identifier, see [`canonical_identifier`](crate::matching::canonical::canonical_identifier).
    pub canonical: &'a [u8],
    /// The rule's window in milliseconds; 0 for a ledger, whose window is defined by its zone.
    pub window_ms: u64,
    /// The client's address, if it is known.
    pub address: Option<IpAddr>,
    /// Length of the prefix by which the configuration exempts the address, if it does.
    pub allowed: Option<u8>,
}

/// Live control of a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// It is denied.
    pub ban: Option<Banned>,
    /// It has no limit.
    pub exempt: bool,
    /// Its limit instead of the rule's.
    pub limit: Option<u64>,
    /// Credit beyond the limit.
    pub credit: u64,
    /// Epoch in which it is counted; 0 if it was never reset.
    pub epoch: u32,
}

impl Found {
    /// The limit of a check under `algorithm` whose configuration states `configured`.
    pub fn limit_of(&self, configured: u64, algorithm: Algorithm) -> u64 {
        effective_limit(configured, self.limit, self.credit, algorithm.max_limit())
    }

    /// Whether it sets or raises the limit.
    pub fn sets_limit(&self) -> bool {
        self.limit.is_some() || self.credit > 0
    }
}

/// A limit under live control: `limit` precedes `configured`, and `credit` is added to either; the sum is at most `most`. Without live
/// control, `configured` is returned unchanged.
pub fn effective_limit(configured: u64, limit: Option<u64>, credit: u64, most: u64) -> u64 {
    match (limit, credit) {
        (None, 0) => configured,
        (limit, credit) => limit.unwrap_or(configured).min(MAX_COUNT).saturating_add(credit).min(most),
    }
}

/// The end of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Banned {
    /// It ends then.
    Until(UnixMs),
    /// It has no end.
    ForEver,
}

/// All controls, by workspace.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    workspaces: BTreeMap<Box<str>, Workspace>,
    /// Parts that must be rebuilt, by workspace and scope.
    stale: BTreeSet<(Box<str>, Box<str>, Part)>,
    /// Words that were looked at for changes.
    #[cfg(test)]
    pub work: usize,
}

#[derive(Clone, Debug, Default)]
struct Workspace {
    scopes: BTreeMap<Box<str>, Scope>,
    shadows: BTreeMap<Box<str>, ControlBody>,
    /// Whether a control names a network.
    networks: bool,
}

impl Index {
    /// Replaces the control of a target and slot. Controls of rules and exact identifiers apply at once, those of patterns and networks
    /// from the next [`Index::settle`] on.
    pub fn change(&mut self, target: &Target, before: Option<ControlBody>, after: Option<ControlBody>) {
        if before == after {
            return;
        }
        self.count_work(1);
        let part = match &target.selector {
            Selector::Rule => return self.change_shadow(target, after),
            Selector::Network(_) => Part::Networks,
            Selector::Identifier(text) => match Pattern::parse(text.as_bytes()) {
                Some(Pattern::Exact(raw)) => return self.change_exact(target, canonical(raw), before, after),
                Some(Pattern::Glob(_)) => match after.or(before) {
                    Some(control) => Part::Patterns(control.effect.slot()),
                    None => return,
                },
                None => return,
            },
        };
        self.stale.insert((target.workspace.as_str().into(), target.scope.as_str().into(), part));
    }

    /// Rebuilds changed parts that are built as a whole, from the controls of their scopes.
    pub fn settle(&mut self, log: &Log) {
        while let Some((workspace, scope, part)) = self.stale.pop_first() {
            let mut visited = 0_usize;
            let controls = log.of_scope(&workspace, &scope).inspect(|_| visited = visited.saturating_add(1));
            self.scope(&workspace, &scope).build(part, controls);
            self.count_work(visited);
            self.tidy(&workspace, &scope);
        }
    }

    fn change_shadow(&mut self, target: &Target, after: Option<ControlBody>) {
        let shadows = &mut self.workspace(&target.workspace).shadows;
        match after {
            Some(control) => drop(shadows.insert(target.scope.as_str().into(), control)),
            None => drop(shadows.remove(target.scope.as_str())),
        }
        self.tidy(&target.workspace, &target.scope);
    }

    fn change_exact(
        &mut self,
        target: &Target,
        canonical: Box<[u8]>,
        before: Option<ControlBody>,
        after: Option<ControlBody>,
    ) {
        self.scope(&target.workspace, &target.scope).change(canonical, before, after);
        if after.is_none() {
            self.tidy(&target.workspace, &target.scope);
        }
    }

    fn workspace(&mut self, name: &str) -> &mut Workspace {
        self.workspaces.entry(name.into()).or_default()
    }

    fn scope(&mut self, workspace: &str, name: &str) -> &mut Scope {
        self.workspace(workspace).scopes.entry(name.into()).or_default()
    }

    /// Drops a scope without controls, so that no lookup is made in it.
    fn tidy(&mut self, workspace: &str, scope: &str) {
        let Some(held) = self.workspaces.get_mut(workspace) else { return };
        if held.scopes.get(scope).is_some_and(Scope::is_empty) {
            held.scopes.remove(scope);
        }
        held.networks = held.scopes.values().any(Scope::has_networks);
        if held.scopes.is_empty() && held.shadows.is_empty() {
            self.workspaces.remove(workspace);
        }
    }

    #[cfg(test)]
    fn count_work(&mut self, words: usize) {
        self.work += words;
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn count_work(&self, _: usize) {}

    pub fn is_empty(&self) -> bool {
        self.workspaces.is_empty()
    }

    /// Whether a client's address matters in this workspace.
    pub fn has_networks(&self, workspace: &str) -> bool {
        self.workspaces.get(workspace).is_some_and(|workspace| workspace.networks)
    }

    /// Whether a rule of this workspace has a shadow switch, in force or expired.
    pub fn has_shadows(&self, workspace: &str) -> bool {
        self.workspaces.get(workspace).is_some_and(|workspace| !workspace.shadows.is_empty())
    }

    /// A rule's shadow switch.
    pub fn shadow(&self, workspace: &str, rule: &str, now: UnixMs) -> Option<bool> {
        let control = self.workspaces.get(workspace)?.shadows.get(rule)?;
        match control.effect {
            Effect::Shadow(on) if control.expires.is_none_or(|expires| now < expires) => Some(on),
            _ => None,
        }
    }

    /// The ban of exactly this identifier in exactly this namespace, expired or not.
    pub fn named(&self, workspace: &str, namespace: &str, canonical: &[u8]) -> Option<Banned> {
        // If there are several, a ban comes first.
        let control = self
            .workspaces
            .get(workspace)?
            .scopes
            .get(namespace)?
            .exact(canonical, |control| control.effect == Effect::Ban)?;
        Some(Banned::from(control.expires))
    }

    /// Whether an identifier or a pattern is banned in a namespace or in all.
    pub fn bans_some(&self, workspace: &str, namespace: &str, now: UnixMs) -> bool {
        let Some(workspace) = self.workspaces.get(workspace) else { return false };
        workspace.scopes_of(namespace).into_iter().flatten().any(|scope| scope.bans_some(now))
    }

    /// The live control of a subject, without bans that rules made.
    pub fn find(&self, subject: &Subject<'_>, now: UnixMs, scratch: &mut Scratch) -> Found {
        let allowed = Found { exempt: subject.allowed.is_some(), ..Found::default() };
        let Some(workspace) = self.workspaces.get(subject.workspace) else { return allowed };
        let scopes = Scopes { scopes: workspace.scopes_of(subject.namespace), subject, now };
        let mut found = scopes.override_of(scratch);
        found.credit = match scopes.by_identifier(Slot::Credit, scratch).map(|control| control.effect) {
            Some(Effect::Credit(amount)) => amount,
            _ => 0,
        };
        found.epoch = scopes.epoch(scratch);
        found
    }

    /// The revision of the control that [`Index::find`] applies in a slot.
    pub fn revision(
        &self,
        subject: &Subject<'_>,
        slot: Slot,
        now: UnixMs,
        scratch: &mut Scratch,
    ) -> Option<u64> {
        let workspace = self.workspaces.get(subject.workspace)?;
        let scopes = Scopes { scopes: workspace.scopes_of(subject.namespace), subject, now };
        let control = match slot {
            Slot::Override => scopes.by_identifier(slot, scratch).or_else(|| scopes.by_network()),
            Slot::Credit => scopes.by_identifier(slot, scratch),
            Slot::Reset => return scopes.newest_reset(scratch),
            Slot::Shadow => None,
        };
        control.map(|control| control.revision)
    }

    /// Length of the prefix by which a network of all namespaces is exempt, and whether it is denied instead.
    pub fn network(&self, workspace: &str, address: IpAddr, now: UnixMs) -> Option<(u8, bool)> {
        let scope = self.workspaces.get(workspace)?.scopes.get(ALL_NAMESPACES)?;
        let (prefix, control) = scope.network(address, |control| control.counts(Slot::Override, 0, now))?;
        Some((prefix, control.effect == Effect::Ban))
    }

    /// Whether the address of a subject is exempt, by live control of networks or else by the configuration.
    pub fn exempts_address(&self, subject: &Subject<'_>, now: UnixMs) -> bool {
        let Some(workspace) = self.workspaces.get(subject.workspace) else {
            return subject.allowed.is_some();
        };
        let scopes = Scopes { scopes: workspace.scopes_of(subject.namespace), subject, now };
        scopes.found(scopes.by_network()).exempt
    }
}

impl Workspace {
    /// The scopes that apply in a namespace, its own first.
    fn scopes_of(&self, namespace: &str) -> [Option<&Scope>; 2] {
        [namespace, ALL_NAMESPACES].map(|name| self.scopes.get(name))
    }
}

/// The scopes that a subject is in, its own namespace first.
struct Scopes<'a> {
    scopes: [Option<&'a Scope>; 2],
    subject: &'a Subject<'a>,
    now: UnixMs,
}

impl Scopes<'_> {
    fn each(&self) -> impl Iterator<Item = &Scope> {
        self.scopes.iter().copied().flatten()
    }

    fn counts(&self, slot: Slot) -> impl Fn(&ControlBody) -> bool {
        move |control| control.counts(slot, self.subject.window_ms, self.now)
    }

    fn exact(&self, scope: &Scope, slot: Slot) -> Option<ControlBody> {
        scope.exact(self.subject.canonical, self.counts(slot))
    }

    fn glob(&self, scope: &Scope, slot: Slot, scratch: &mut Scratch) -> Option<ControlBody> {
        scope.pattern(slot, self.subject.raw, self.counts(slot), &mut scratch.0)
    }

    fn by_identifier(&self, slot: Slot, scratch: &mut Scratch) -> Option<ControlBody> {
        let exact = self.each().find_map(|scope| self.exact(scope, slot));
        exact.or_else(|| self.each().find_map(|scope| self.glob(scope, slot, scratch)))
    }

    /// By the client's network, unless the configuration exempts a smaller one.
    fn by_network(&self) -> Option<ControlBody> {
        let address = self.subject.address?;
        let found = |scope: &Scope| scope.network(address, self.counts(Slot::Override));
        let (prefix, control) = self.each().find_map(found)?;
        self.subject.allowed.is_none_or(|allowed| prefix >= allowed).then_some(control)
    }

    fn override_of(&self, scratch: &mut Scratch) -> Found {
        self.found(self.by_identifier(Slot::Override, scratch).or_else(|| self.by_network()))
    }

    /// What an override does, or the configuration if there is none.
    fn found(&self, control: Option<ControlBody>) -> Found {
        let nothing = Found::default();
        let Some(control) = control else {
            return Found { exempt: self.subject.allowed.is_some(), ..nothing };
        };
        match control.effect {
            Effect::Ban => Found { ban: Some(Banned::from(control.expires)), ..nothing },
            Effect::Exempt => Found { exempt: true, ..nothing },
            Effect::Limit(limit) => {
                Found { limit: Some(limit), exempt: self.subject.allowed.is_some(), ..nothing }
            }
            _ => nothing,
        }
    }

    fn epoch(&self, scratch: &mut Scratch) -> u32 {
        u32::try_from(self.newest_reset(scratch).unwrap_or(0)).unwrap_or(u32::MAX)
    }

    fn newest_reset(&self, scratch: &mut Scratch) -> Option<u64> {
        let newest = |scope| {
            let glob = self.glob(scope, Slot::Reset, scratch);
            self.exact(scope, Slot::Reset).into_iter().chain(glob).map(|control| control.revision).max()
        };
        self.scopes.iter().copied().flatten().filter_map(newest).max()
    }
}

impl From<Option<UnixMs>> for Banned {
    fn from(expires: Option<UnixMs>) -> Banned {
        expires.map_or(Banned::ForEver, Banned::Until)
    }
}
