//! Lookups of live controls, updates of a set by frames, and the set that the workers of a process share.

mod control;
mod converge;
mod following;
mod keeper;
mod lookups;

use super::*;
use crate::matching::canonical::canonical_identifier;
use crate::model::wire;
use std::vec::Vec;

const INCARNATION: u64 = 7;

/// `name` is an identifier, a network if it has dots, or `rule`. A `/` and the window may follow the scope.
fn control(revision: u64, scope: &str, name: &str, effect: Effect) -> Control {
    let (scope, window_ms) = match scope.split_once('/') {
        Some((scope, window_ms)) => (scope, Some(window_ms.parse().unwrap())),
        None => (scope, None),
    };
    let selector = match name {
        "rule" => Selector::Rule,
        network if network.contains('.') => Selector::Network(parse_network(network).unwrap()),
        identifier => Selector::Identifier(identifier.into()),
    };
    let target = Target { workspace: "w".into(), scope: scope.into(), selector, window_ms };
    let control = Control { target, effect, expires: None, revision };
    assert_eq!(control.check(), Ok(()));
    control
}

fn until(mut control: Control, at: u64) -> Control {
    control.expires = Some(UnixMs(at));
    control
}

/// A frame with all controls.
fn full_frame(controls: &[Control], complete_through: u64) -> wire::Controls {
    let entries = controls.iter().map(Control::to_wire).collect();
    wire::Controls {
        incarnation: INCARNATION,
        entries,
        complete_through,
        from_scratch: true,
        ..Default::default()
    }
}

fn set(controls: &[Control]) -> Controls {
    let mut set = Controls::default();
    set.apply(&full_frame(controls, 1_000));
    assert_eq!((set.iter().count(), set.refused()), (controls.len(), 0));
    set
}

/// Looks up an identifier in namespace `n` and the window of a minute.
fn find(set: &Controls, raw: &str, address: &str, now: u64) -> Found {
    find_in(set, "n", 60_000, raw, address, None, now)
}

fn find_in(
    set: &Controls,
    namespace: &str,
    window_ms: u64,
    raw: &str,
    address: &str,
    allowed: Option<u8>,
    now: u64,
) -> Found {
    let mut canonical = Vec::new();
    canonical_identifier(raw.as_bytes(), &mut canonical);
    let (raw, canonical) = (raw.as_bytes(), canonical.as_slice());
    let address = address.parse().ok();
    let subject = Subject { workspace: "w", namespace, raw, canonical, window_ms, address, allowed };
    set.find(&subject, UnixMs(now), &mut Scratch::default())
}
