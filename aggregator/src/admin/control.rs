//! Live control of a displayed key. Without it, an explanation would be wrong: a ban does not use the limit, and an
//! override applies to future requests, not to what was counted.
//!
//! If the identifier is an address, networks that contain it apply too.

use super::query::KeyQuery;
use super::view::{Control, Entry, Exact, ShadowDenial, Window};
use crate::controls::name_and_value;
use crate::region::exact::RuleFacts;
use crate::region::services::Services;
use crate::region::status::counters::Rule;
use crate::telemetry::text::text;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use weir_core::control::{ALL_NAMESPACES, Banned, Found, Scratch, Selector, Slot, Subject};
use weir_core::matching::networks::parse_network;
use weir_core::model::exact::{AlgorithmKind, ExactKey};
use weir_core::model::key::{KeyParts, Namespace};
use weir_core::model::time::UnixMs;
use weir_core::region::KeyCells;
use weir_core::region::top::{KeyUsage, Ranked};

/// Live control for an identifier: for windows of this length, or for all windows if `window_ms` is 0.
pub fn control_of(
    services: &Services,
    query: &KeyQuery,
    canonical: &[u8],
    window_ms: u64,
    now: UnixMs,
) -> Control {
    let namespace = Namespace { workspace: &*query.workspace, name: &query.namespace };
    find(services, namespace, (&query.identifier, canonical), window_ms, now, true)
}

/// Like [`control_of`], for a key of which only the counted identifier is known.
fn control_of_key(services: &Services, key: &KeyParts<'_>, now: UnixMs) -> Control {
    find(services, key.whole_namespace(), (key.identifier, key.identifier), key.duration_ms, now, false)
}

fn find(
    services: &Services,
    namespace: Namespace<&[u8]>,
    (raw, canonical): (&[u8], &[u8]),
    window_ms: u64,
    now: UnixMs,
    by_entries: bool,
) -> Control {
    let (workspace, namespace) = (&*text(namespace.workspace), &*text(namespace.name));
    let address = address(raw);
    let subject = Subject { workspace, namespace, raw, canonical, window_ms, address, allowed: None };
    let (book, mut scratch) = (services.control.book(), Scratch::default());
    let set = book.controls();
    let found = set.find(&subject, now, &mut scratch);
    // Looking up the entries takes a scan of all controls.
    let is_wanted = by_entries && found != Found::default();
    let slots = [Slot::Override, Slot::Credit, Slot::Reset].into_iter().filter(|_| is_wanted);
    let entries = slots.filter_map(|slot| entry(&set.source(&subject, slot, now, &mut scratch)?)).collect();
    Control {
        banned: found.ban.is_some(),
        banned_until_unix_ms: match found.ban {
            Some(Banned::Until(at)) => Some(at.0),
            Some(Banned::ForEver) | None => None,
        },
        exempt: found.exempt,
        limit: found.limit,
        credit: found.credit,
        epoch: found.epoch,
        entries,
    }
}

/// The client's address or network, if the identifier is one.
fn address(raw: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(raw).ok()?;
    Some(parse_network(text).ok()?.addr())
}

fn entry(control: &weir_core::control::Control) -> Option<Entry> {
    let (identifier, network) = match &control.target.selector {
        Selector::Identifier(text) => (Some(text.clone()), None),
        Selector::Network(network) => (None, Some(network.to_string())),
        Selector::Rule => return None,
    };
    Some(Entry {
        kind: name_and_value(&control.effect).0.to_owned(),
        namespace: control.target.scope.clone(),
        identifier,
        network,
        window_ms: control.target.window_ms,
        revision: control.revision,
        author: None,
        reason: None,
    })
}

/// Windows of a namespace for which there are controls that do not apply to all windows.
pub fn windows_controlled(services: &Services, here: &Namespace<String>) -> BTreeSet<u64> {
    let is_here = |control: &weir_core::control::Control| {
        control.target.workspace == here.workspace
            && [&here.name, ALL_NAMESPACES].contains(&control.target.scope.as_str())
    };
    let book = services.control.book();
    book.controls().iter().filter(is_here).filter_map(|control| control.target.window_ms).collect()
}

/// The limits that apply to keys now.
pub struct Limits<'a> {
    services: &'a Services,
    /// The properties of all rules that filters of the region report, with their present shadow mode.
    rules: Vec<Rule>,
    /// Where the rules of a workspace and namespace are.
    places: HashMap<String, HashMap<String, Vec<usize>>>,
    /// Where the rules that charge a zone are.
    zones: HashMap<u32, Vec<usize>>,
    now: UnixMs,
}

impl<'a> Limits<'a> {
    /// The limits at this moment.
    pub fn new(services: &'a Services, now: UnixMs) -> Limits<'a> {
        let (mut rules, book) = (services.status.rules_of_region(), services.control.book());
        let mut places: HashMap<String, HashMap<String, Vec<usize>>> = HashMap::new();
        let mut zones: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, rule) in rules.iter_mut().enumerate() {
            rule.shadow = book.controls().shadow(&rule.workspace, &rule.name, now).unwrap_or(rule.shadow);
            let of_workspace = places.entry(rule.workspace.clone()).or_default();
            of_workspace.entry(rule.namespace.clone()).or_default().push(at);
            if rule.is(AlgorithmKind::Ledger) {
                zones.entry(rule.zone).or_default().push(at);
            }
        }
        Limits { services, rules, places, zones, now }
    }

    /// All rules reported by filters of the region.
    pub fn region_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rules of a namespace.
    pub fn rules_in(&self, workspace: &[u8], namespace: &[u8]) -> impl Iterator<Item = &Rule> {
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let of_workspace = text(workspace).and_then(|workspace| self.places.get(workspace));
        let found = of_workspace.zip(text(namespace)).and_then(|(of, namespace)| of.get(namespace));
        found.into_iter().flatten().filter_map(move |at| self.rules.get(*at))
    }

    /// The rules of a namespace that count windows of this length by this algorithm.
    pub fn rules_by(
        &self,
        namespace: Namespace<&[u8]>,
        algorithm: AlgorithmKind,
        window_ms: u64,
    ) -> impl Iterator<Item = &Rule> {
        let is_wanted = move |rule: &&Rule| rule.is(algorithm) && rule.window_ms == window_ms;
        self.rules_in(namespace.workspace, namespace.name).filter(is_wanted)
    }

    /// The rules that charge a zone.
    fn rules_of_zone(&self, zone: u32) -> impl Iterator<Item = &Rule> {
        self.zones.get(&zone).into_iter().flatten().filter_map(move |at| self.rules.get(*at))
    }

    /// The rules that count a key.
    pub fn rules(&self, key: &KeyParts<'_>) -> impl Iterator<Item = &Rule> {
        self.rules_by(key.whole_namespace(), AlgorithmKind::Window, key.duration_ms)
    }

    /// What rules state of an exact key.
    pub fn ruled(&self, key: &ExactKey) -> RuleFacts<'_> {
        match key {
            ExactKey::Log(own) => {
                let (parts, kind) = (own.parts(), key.algorithm().kind());
                let rules = self.rules_by(parts.whole_namespace(), kind, parts.duration_ms);
                RuleFacts { namespace: b"", shadow: only_shadow(rules) }
            }
            ExactKey::Ledger { zone, .. } => {
                let namespace = self.namespace_of(*zone).map_or("", |namespace| namespace.name);
                let shadow = only_shadow(self.rules_of_zone(*zone));
                RuleFacts { namespace: namespace.as_bytes(), shadow }
            }
        }
    }

    /// The namespace of the rules that charge a zone, if they have one.
    pub fn namespace_of(&self, zone: u32) -> Option<Namespace<&str>> {
        let mut namespaces = self.rules_of_zone(zone).map(namespace_of);
        let first = namespaces.next()?;
        namespaces.all(|namespace| namespace == first).then_some(first)
    }

    /// A rule as displayed with a key.
    pub fn shown(&self, rule: &Rule) -> super::view::Rule {
        super::view::Rule { name: rule.name.clone(), limit: rule.limit, shadow: rule.shadow }
    }

    /// The usage of a key under live control `control`.
    pub fn explained(&self, key: &KeyCells, control: &Control) -> KeyUsage {
        let usage = key.usage(self.now);
        match self.changed(&key.key.parts(), control, usage.limit) {
            None => usage,
            changed => key.usage_under(changed, self.now),
        }
    }

    /// The usage of a key that a scan found.
    pub fn ranked(&self, found: &Ranked) -> KeyUsage {
        let key = found.key.parts();
        let control = control_of_key(self.services, &key, self.now);
        let usage = self.usage_under(&control, found);
        KeyUsage { wait_ms: control.wait_ms(usage.wait_ms, self.now), ..usage }
    }

    /// The usage under the limits of `control`.
    fn usage_under(&self, control: &Control, found: &Ranked) -> KeyUsage {
        let key = found.key.parts();
        let Some(changed) = self.changed(&key, control, found.usage.limit) else { return found.usage };
        let known = self.services.explain(key.workspace, key.namespace, key.identifier);
        let known = known.iter().find(|known| known.key == found.key);
        known.map_or(found.usage, |known| known.usage_under(Some(changed), self.now))
    }

    /// The limit that applies from now on, if it differs from the limit that was applied last.
    fn changed(&self, key: &KeyParts<'_>, control: &Control, applied: Option<u64>) -> Option<u64> {
        let rules: Vec<u64> = self.rules(key).map(|rule| rule.limit).collect();
        control.limit_over(&rules, applied).filter(|limit| Some(*limit) != applied)
    }
}

/// Where a rule counts.
pub fn namespace_of(rule: &Rule) -> Namespace<&str> {
    Namespace { workspace: &rule.workspace, name: &rule.namespace }
}

/// Whether there are rules, all in shadow mode.
pub fn only_shadow<'a>(rules: impl Iterator<Item = &'a Rule>) -> bool {
    let mut rules = rules.peekable();
    rules.peek().is_some() && rules.all(|rule| rule.shadow)
}

/// Applies live control to the predicted outcome of a request against an exact limit.
pub fn judge_exact(exact: &mut Exact, control: Control, now: UnixMs) {
    if control.banned || control.exempt {
        (exact.passes, exact.wait_ms) = (Some(!control.banned), control.wait_ms(exact.wait_ms, now));
    }
    exact.control = control;
    if exact.shadow && exact.passes == Some(false) {
        exact.but_for_shadow = Some(ShadowDenial { wait_ms: exact.wait_ms });
        (exact.passes, exact.wait_ms) = (Some(true), Some(0));
    }
}

/// Applies live control to the predicted outcome of a request.
pub fn judge(window: &mut Window, control: Control, now: UnixMs) {
    window.outdated = window.epoch != control.epoch;
    if window.outdated {
        (window.passes, window.wait_ms, window.remaining) = (None, None, None);
    } else if control.banned || control.exempt {
        (window.passes, window.wait_ms) = (Some(!control.banned), control.wait_ms(window.wait_ms, now));
    }
    window.control = control;
    let is_shadow = !window.rules.is_empty() && window.rules.iter().all(|rule| rule.shadow);
    if is_shadow && window.passes == Some(false) {
        window.but_for_shadow = Some(ShadowDenial { wait_ms: window.wait_ms });
        (window.passes, window.wait_ms) = (Some(true), Some(0));
    }
}
