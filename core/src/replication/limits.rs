//! Applies the limits of live control to the keys that the region holds.
//!
//! A filter reports a limit with the next request of a key. For a key without requests, nothing would show that its limit fell below what was
//! used, that an override ended, or that it was lifted: the region would publish and show the key by its former limit. So each change of
//! live control, and each end of a control, is applied here.
//!
//! A node may apply a control for a moment after it has ended or was lifted here, and reports that limit as the newest. So each change is
//! applied once more when the nodes must have it ([`SETTLE_MS`]).
//!
//! A control of one identifier in one namespace names its keys. For any other all keys are looked at, in short steps with pauses; keys of
//! other namespaces cost next to nothing.

use super::events::Event;
use super::{Access, Next};
use crate::control::{
    ALL_NAMESPACES, Control, Controls, Scratch, Selector, Slot, Subject, Target, effective_limit,
};
use crate::matching::canonical::canonical_identifier;
use crate::matching::glob::Pattern;
use crate::model::key::{KeyParts, Namespace};
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use crate::region::LiveLimit;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Most changed identifiers that are looked up by name; for more, the keys of their namespaces are looked at.
const MAX_NAMES: usize = 1_024;
/// Most identifiers that are looked up in one step.
const STEP_NAMES: usize = 64;
/// The pause after each step of a walk over all keys, in milliseconds.
const PAUSE_MS: u64 = 2;
/// Least time between two looks for ended controls: many bans may end one after the other.
const LEAST_WAIT_MS: u64 = 1_000;
/// Longest wait for the end of a control, as the clock may be set.
const LONGEST_WAIT_MS: u64 = 10_000;

/// After this time the nodes have a change of live control, and have reported what they applied before it, in milliseconds.
const SETTLE_MS: u64 = 5_000;

/// An identifier in its canonical form, in a namespace.
type Name = (Namespace<Box<str>>, Vec<u8>);

/// Which keys may have another limit: those in a namespace.
#[derive(Clone, Debug, Default)]
struct Scopes {
    all: bool,
    /// The namespaces of each workspace.
    workspaces: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
}

/// Which keys may have another limit.
#[derive(Clone, Debug, Default)]
struct Changed {
    names: BTreeSet<Name>,
    scopes: Scopes,
}

/// Runs for as long as the aggregator does.
#[derive(Debug, Default)]
pub struct LiveLimits {
    changed: Changed,
    /// What is applied once more, and when; and what changed since that was settled.
    settling: Option<(UnixMs, Changed)>,
    unsettled: Changed,
    walk: Option<Walk>,
    /// The ends of controls up to then were noted.
    ended: UnixMs,
    /// When the next control ends; `None` if that has to be looked up.
    next_end: Option<UnixMs>,
    scratch: Scratch,
}

#[derive(Debug)]
struct Walk {
    from: usize,
    scopes: Scopes,
}

impl LiveLimits {
    /// A control was set or lifted. Then notify [`Event::Limits`].
    pub fn changed(&mut self, control: &Control) {
        if !matches!(control.effect.slot(), Slot::Override | Slot::Credit) {
            return;
        }
        self.next_end = None;
        let Target { workspace, scope, selector, .. } = &control.target;
        let raw = match selector {
            // Neither has a limit.
            Selector::Rule | Selector::Network(_) => return,
            Selector::Identifier(text) => match Pattern::parse(text.as_bytes()) {
                Some(Pattern::Exact(raw)) if scope != ALL_NAMESPACES => Some(raw),
                _ => None,
            },
        };
        for changed in [&mut self.changed, &mut self.unsettled] {
            match raw.as_ref().filter(|_| changed.names.len() < MAX_NAMES) {
                Some(raw) => {
                    let mut canonical = Vec::new();
                    canonical_identifier(raw, &mut canonical);
                    let namespace =
                        Namespace { workspace: workspace.as_str().into(), name: scope.as_str().into() };
                    changed.names.insert((namespace, canonical));
                }
                None => changed.scopes.insert(workspace, scope),
            }
        }
    }

    /// Any control may have changed. Then notify [`Event::Limits`].
    pub fn all_changed(&mut self) {
        self.changed.scopes.all = true;
        self.unsettled.scopes.all = true;
        self.next_end = None;
    }

    /// What to do now; `controls` are those that decide.
    pub fn next(&mut self, access: &mut impl Access, controls: &Controls) -> Next<()> {
        let now = access.state(|_, now| now.unix);
        let next_end = match self.next_end.filter(|ends| *ends > now) {
            Some(ends) => ends,
            None => self.note_ends(controls, now),
        };
        let settles = self.settle(now);
        if !self.changed.names.is_empty() {
            self.apply_names(access, controls);
            return Next::Yield;
        }
        if self.walk.is_none() && !self.changed.scopes.is_empty() {
            self.walk = Some(Walk { from: 0, scopes: core::mem::take(&mut self.changed.scopes) });
        }
        if self.walk.is_some() {
            self.apply_some(access, controls);
            return Next::Sleep(PAUSE_MS);
        }
        let wait_ms = next_end.min(settles).0.saturating_sub(now.0).clamp(1, LONGEST_WAIT_MS);
        Next::Wait { events: Event::Limits.into(), at_most_ms: Some(wait_ms) }
    }

    /// Has what changed [`SETTLE_MS`] ago applied once more. Returns when that is due next.
    fn settle(&mut self, now: UnixMs) -> UnixMs {
        if let Some((_, mut settled)) = self.settling.take_if(|(due, _)| *due <= now) {
            self.changed.names.append(&mut settled.names);
            self.changed.scopes.add(settled.scopes);
        }
        if self.settling.is_none() && !self.unsettled.is_empty() {
            let due = UnixMs(now.0.saturating_add(SETTLE_MS));
            self.settling = Some((due, core::mem::take(&mut self.unsettled)));
        }
        self.settling.as_ref().map_or(UnixMs(u64::MAX), |(due, _)| *due)
    }

    /// Notes the controls that have ended. Returns when the next one ends.
    fn note_ends(&mut self, controls: &Controls, now: UnixMs) -> UnixMs {
        let since = core::mem::replace(&mut self.ended, now);
        let mut next = UnixMs(u64::MAX);
        for control in controls.iter() {
            match control.expires {
                Some(expires) if expires > now => next = next.min(expires),
                Some(expires) if expires > since => self.changed(&control),
                _ => {}
            }
        }
        let next = next.max(UnixMs(now.0.saturating_add(LEAST_WAIT_MS)));
        self.next_end = Some(next);
        next
    }

    fn apply_names(&mut self, access: &mut impl Access, controls: &Controls) {
        let LiveLimits { changed: Changed { names, .. }, scratch, .. } = self;
        access.state(|state, now| {
            for _ in 0..STEP_NAMES {
                let Some((Namespace { workspace, name }, identifier)) = names.pop_first() else { break };
                let namespace = Namespace { workspace: workspace.as_bytes(), name: name.as_bytes() };
                let live = |parts: &KeyParts<'_>, configured| {
                    Some(live_limit(controls, parts, configured, now.unix, scratch))
                };
                state.region.control_identifier(namespace, &identifier, live, now.unix);
            }
            state.limits_applied();
        });
    }

    fn apply_some(&mut self, access: &mut impl Access, controls: &Controls) {
        let LiveLimits { walk, scratch, .. } = self;
        let Some(Walk { from, scopes }) = walk else { return };
        let next = access.state(|state, now| {
            // What live control does not concern keeps what it has.
            let live = |parts: &KeyParts<'_>, configured| match scopes.has(parts) {
                true => Some(live_limit(controls, parts, configured, now.unix, scratch)),
                false => None,
            };
            let next = state.region.control_some(*from, live, now.unix);
            state.limits_applied();
            next
        });
        match next {
            Some(next) => *from = next,
            None => *walk = None,
        }
    }
}

impl Changed {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.scopes.is_empty()
    }
}

impl Scopes {
    fn add(&mut self, other: Scopes) {
        self.all |= other.all;
        for (workspace, mut namespaces) in other.workspaces {
            self.workspaces.entry(workspace).or_default().append(&mut namespaces);
        }
    }

    fn is_empty(&self) -> bool {
        !self.all && self.workspaces.is_empty()
    }

    fn insert(&mut self, workspace: &str, scope: &str) {
        let namespaces = self.workspaces.entry(workspace.into()).or_default();
        namespaces.insert(scope.into());
    }

    fn has(&self, parts: &KeyParts<'_>) -> bool {
        let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
        let namespaces = || self.workspaces.get(text(parts.workspace));
        let is_in = |namespaces: &BTreeSet<Box<str>>| {
            namespaces.contains(ALL_NAMESPACES) || namespaces.contains(text(parts.namespace))
        };
        self.all || namespaces().is_some_and(is_in)
    }
}

/// What live control sets for a key.
fn live_limit(
    controls: &Controls,
    parts: &KeyParts<'_>,
    configured: Option<u64>,
    now: UnixMs,
    scratch: &mut Scratch,
) -> LiveLimit {
    let text = |bytes| core::str::from_utf8(bytes).ok();
    let Some((workspace, namespace)) = text(parts.workspace).zip(text(parts.namespace)) else {
        return LiveLimit::Unset;
    };
    let subject = Subject {
        workspace,
        namespace,
        raw: parts.identifier,
        canonical: parts.identifier,
        window_ms: parts.duration_ms,
        address: None,
        allowed: None,
    };
    let found = controls.find(&subject, now, scratch);
    match (found.limit, found.credit) {
        _ if found.exempt || found.ban.is_some() => LiveLimit::Unset,
        (None, 0) => LiveLimit::Unset,
        (limit, credit) => match limit.or(configured) {
            Some(limit) => LiveLimit::Set(effective_limit(limit, None, credit, MAX_COUNT)),
            None => LiveLimit::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NODE, NOW, at, count, state};
    use super::*;
    use crate::control::Effect;
    use crate::control::book::{Book, Contents, Edition, Entry, News};
    use crate::model::wire::{self, FilterFrame, Report};
    use crate::region::Due;
    use crate::replication::RegionState;
    use std::string::String;
    use std::vec;

    /// One of three regions, and live control.
    struct Scene {
        state: RegionState,
        book: Book,
        controls: Controls,
        limits: LiveLimits,
        revision: u64,
        ms: u64,
    }

    const KEYS: [&str; 3] = ["i", "key-7", "other"];

    /// A region that has no counts yet.
    fn empty_scene() -> Scene {
        let mut state = state();
        state.region.set_regions(3);
        let (controls, limits) = (Controls::default(), LiveLimits::default());
        Scene { state, book: Book::new(), controls, limits, revision: 0, ms: 0 }
    }

    /// Each key was used 150 times under a limit of 1000.
    fn scene() -> Scene {
        let mut scene = empty_scene();
        scene.report(1_000, None);
        scene
    }

    impl Scene {
        /// A node has applied `limit`; the configured one is another if live control has set it.
        fn report(&mut self, limit: u64, configured: Option<u64>) {
            let applied_ms = at(&mut self.state, self.ms).now.unix.0;
            self.report_at(limit, configured, applied_ms);
        }

        fn report_at(&mut self, limit: u64, configured: Option<u64>, applied_ms: u64) {
            let count = |key: &&str| wire::Count { limit, configured, applied_ms, ..count(key, 150) };
            let counts = KEYS.iter().map(count).collect();
            let frame = FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() };
            let now = at(&mut self.state, self.ms).now;
            self.state.take(NODE, frame, now).unwrap();
        }

        /// The aggregator starts again with empty memory. It has live control before a node repeats its counts.
        fn restart(&mut self) {
            self.state = state();
            self.state.region.set_regions(3);
            self.limits = LiveLimits::default();
            self.limits.all_changed();
            self.run();
        }

        fn control(
            &mut self,
            scope: &str,
            selector: &Selector,
            effect: Effect,
            ends_ms: Option<u64>,
            is_deleted: bool,
        ) {
            self.revision += 1;
            let target = Target {
                workspace: "w".into(),
                scope: scope.into(),
                selector: selector.clone(),
                window_ms: None,
            };
            let expires = ends_ms.map(|ms| UnixMs(NOW.unix.0 + ms));
            let control = Control { target, effect, expires, revision: self.revision };
            let revision = self.revision;
            let edition = Edition { incarnation: 5, revision, stamp: 1, floor: 0, dropped_before: UnixMs(0) };
            let now = at(&mut self.state, self.ms).now.unix;
            let since = self.revision - 1;
            let entry = Entry { control: control.clone(), is_deleted, stamp: 1 };
            let contents = Contents::default();
            assert!(self.book.take(News { edition, since, entries: vec![entry], bad: 0, contents }, now));
            for frame in self.book.frames_since(Some(self.controls.known()), now) {
                self.controls.apply(&frame);
            }
            self.limits.changed(&control);
        }

        /// Runs until nothing is left to do now.
        fn run(&mut self) {
            self.ms += 1;
            while !matches!(
                self.limits.next(&mut at(&mut self.state, self.ms), &self.controls),
                Next::Wait { .. }
            ) {}
        }

        /// The limits that are shown.
        fn shown(&self) -> Vec<u64> {
            let explained = |key: &&str| self.state.region.explain(b"w", b"n", key.as_bytes());
            KEYS.iter().map(|key| explained(key)[0].newest_limit.unwrap()).collect()
        }

        fn due(&mut self) -> usize {
            let now = at(&mut self.state, self.ms).now.unix;
            let rows = self.state.region.next_rows(Due::Now, 99, now);
            self.state.region.published(&rows, now);
            rows.len()
        }
    }

    fn named(text: &str) -> Selector {
        Selector::Identifier(String::from(text))
    }

    #[test]
    fn a_limit_below_the_use_is_applied_to_every_key_that_it_concerns() {
        for (scope, selector, concerned) in [
            ("n", named("i"), [true, false, false]),
            ("*", named("i"), [true, false, false]),
            ("n", named("key-*"), [false, true, false]),
            ("*", named("*"), [true; 3]),
            ("elsewhere", named("*"), [false; 3]),
        ] {
            let mut scene = scene();
            assert_eq!(scene.due(), 0);
            scene.control(scope, &selector, Effect::Limit(100), None, false);
            scene.run();
            let expected = concerned.map(|is| if is { 100 } else { 1_000 });
            assert_eq!(scene.shown(), expected, "{scope} {selector:?}");
            assert_eq!(scene.due(), concerned.iter().filter(|is| **is).count(), "{scope} {selector:?}");
            scene.control(scope, &selector, Effect::Limit(100), None, true);
            scene.run();
            assert_eq!(scene.shown(), [1_000; 3], "it is lifted: {scope} {selector:?}");
        }
    }

    #[test]
    fn the_end_of_a_raised_limit_makes_the_use_due() {
        for selector in [named("i"), named("i*")] {
            let mut scene = scene();
            scene.report(1_000, None);
            scene.control("n", &selector, Effect::Limit(2_000), Some(5_000), false);
            scene.run();
            scene.ms = 2_000;
            scene.report(2_000, Some(1_000));
            assert_eq!(scene.shown()[0], 2_000);
            let wait = scene.limits.next(&mut at(&mut scene.state, scene.ms), &scene.controls);
            assert_eq!(wait, Next::Wait { events: Event::Limits.into(), at_most_ms: Some(3_000) });
            scene.ms = 5_000;
            scene.run();
            assert_eq!(scene.shown()[0], 1_000);
        }
    }

    #[test]
    fn a_limit_that_a_node_applies_after_its_end_is_not_shown_for_long() {
        for selector in [named("i"), named("i*")] {
            for ends in [None, Some(7_000)] {
                let mut scene = scene();
                scene.control("n", &selector, Effect::Limit(2_000), ends, false);
                scene.run();
                scene.ms = 7_000;
                if ends.is_none() {
                    scene.control("n", &selector, Effect::Limit(2_000), None, true);
                }
                scene.run();
                assert_eq!(scene.shown()[0], 1_000);
                // The node's clock is behind, or it has not received the change.
                scene.ms = 7_300;
                scene.report(2_000, Some(1_000));
                assert_eq!(scene.shown()[0], 2_000);
                scene.ms += 2 * SETTLE_MS;
                scene.run();
                assert_eq!(scene.shown()[0], 1_000, "{selector:?} {ends:?}");
                assert_eq!(
                    scene.limits.next(&mut at(&mut scene.state, scene.ms), &scene.controls),
                    Next::Wait { events: Event::Limits.into(), at_most_ms: Some(LONGEST_WAIT_MS) },
                    "nothing is left"
                );
            }
        }
    }

    #[test]
    fn a_credit_is_added_to_the_configured_limit() {
        let mut scene = scene();
        scene.control("n", &named("*"), Effect::Credit(50), None, false);
        scene.run();
        assert_eq!(scene.shown(), [1_050; 3]);
        scene.control("n", &named("i"), Effect::Ban, None, false);
        scene.control("n", &named("*"), Effect::Limit(10), None, false);
        scene.run();
        assert_eq!(scene.shown(), [1_000, 60, 60], "a ban sets no limit");
        scene.limits.all_changed();
        scene.controls = Controls::default();
        scene.run();
        assert_eq!(scene.shown(), [1_000; 3]);
    }

    /// The effect of a control, and the limit that it sets in place of 1000.
    const EFFECTS: [(Effect, u64); 3] =
        [(Effect::Limit(2_000), 2_000), (Effect::Limit(200), 200), (Effect::Credit(500), 1_500)];

    #[test]
    fn a_key_that_begins_under_live_control_has_its_configured_limit_afterwards() {
        for (effect, limit) in EFFECTS {
            for node_is_first in [false, true] {
                for ends in [None, Some(5_000)] {
                    let mut scene = empty_scene();
                    if node_is_first {
                        scene.report(limit, Some(1_000));
                    }
                    scene.control("n", &named("*"), effect, ends, false);
                    scene.run();
                    if !node_is_first {
                        scene.report(limit, Some(1_000));
                    }
                    assert_eq!(scene.shown(), [limit; 3], "{effect:?}, node first: {node_is_first}");
                    match ends {
                        Some(ms) => scene.ms = ms,
                        None => scene.control("n", &named("*"), effect, None, true),
                    }
                    scene.run();
                    assert_eq!(scene.shown(), [1_000; 3], "{effect:?}, node first: {node_is_first}");
                }
            }
        }
    }

    #[test]
    fn a_restart_under_live_control_keeps_the_configured_limit() {
        for (effect, limit) in EFFECTS {
            let mut scene = empty_scene();
            scene.control("n", &named("*"), effect, None, false);
            scene.run();
            scene.report(limit, Some(1_000));
            scene.restart();
            // What a node repeats has no time, as its limit may be outdated.
            scene.report_at(limit, Some(1_000), 0);
            scene.control("n", &named("*"), effect, None, true);
            scene.run();
            assert_eq!(scene.shown(), [1_000; 3], "{effect:?}");
        }
    }

    #[test]
    fn many_changed_identifiers_are_found_by_a_walk() {
        let mut scene = scene();
        for number in 0..2 * MAX_NAMES {
            scene.control("n", &named(&std::format!("absent{number}")), Effect::Limit(1), None, false);
        }
        scene.control("n", &named("i"), Effect::Limit(100), None, false);
        scene.run();
        assert_eq!(scene.shown()[0], 100);
    }
}
