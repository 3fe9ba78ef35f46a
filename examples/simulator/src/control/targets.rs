//! What operators change in a world, and where; the clients that rules ban.

use weir_core::control::{ALL_NAMESPACES, Effect, Selector, Slot, Target};
use weir_core::matching::networks::parse_network;
use weir_core::model::key::Namespace;

/// The workspace of all controls but those of a flood.
pub(super) const WORKSPACE: &str = "w";

/// The namespace of most controls.
pub(super) const NAMESPACE: &str = "n";
/// The namespace in its workspace.
pub(super) const OF: Namespace<&str> = Namespace { workspace: WORKSPACE, name: NAMESPACE };

/// The namespace of floods.
pub(super) const FLOODED: &str = "f";

/// Clients that exceed their limit.
pub(super) const CLIENTS: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// Denials that lead to a ban of a client.
pub(super) const THRESHOLD: u64 = 3;

/// Number of targets.
pub(super) const TARGETS: u64 = 10;

/// A target and the slot of a control.
pub(super) type Place = (Target, Slot);

/// The targets of a world, each with an effect.
pub(super) fn target(which: u64, amount: u64) -> (Target, Effect) {
    let at = |scope: &str, selector| Target {
        workspace: WORKSPACE.into(),
        scope: scope.into(),
        selector,
        window_ms: None,
    };
    let named = |name: &str| Selector::Identifier(name.into());
    let network = || parse_network("10.0.0.0/8").map_or(Selector::Rule, Selector::Network);
    match which {
        0 => (at(NAMESPACE, named("alice")), Effect::Limit(amount)),
        1 => (at(NAMESPACE, named("alice")), Effect::Ban),
        2 => (at(NAMESPACE, named("alice")), Effect::Reset),
        3 => (at(NAMESPACE, named("alice")), Effect::Credit(amount)),
        4 => (at(NAMESPACE, named("a*")), Effect::Exempt),
        5 => (at(ALL_NAMESPACES, named("bob")), Effect::Ban),
        6 => (at(NAMESPACE, network()), Effect::Ban),
        7 => (at(NAMESPACE, named("carol")), Effect::Ban),
        8 => (at(NAMESPACE, named("dave")), Effect::Ban),
        _ => (at("rule", Selector::Rule), Effect::Shadow(amount.is_multiple_of(2))),
    }
}

/// Where a ban of a client is stored.
pub(super) fn place_of(client: &str) -> Place {
    let selector = Selector::Identifier(client.into());
    let target = Target { workspace: WORKSPACE.into(), scope: NAMESPACE.into(), selector, window_ms: None };
    (target, Slot::Override)
}

/// Whether a target is one of a flood, which nothing checks by itself.
pub(super) fn is_of_flood(target: &Target) -> bool {
    target.scope == FLOODED
}
