//! What operators change in a world, and where.

use weir_core::control::{ALL_NAMESPACES, Effect, Selector, Slot, Target};
use weir_core::matching::networks::parse_network;

/// The workspace of all controls.
const WORKSPACE: &str = "w";

/// The namespace of most controls.
const NAMESPACE: &str = "n";

/// Number of targets.
pub(super) const TARGETS: u64 = 8;

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
        _ => (at("rule", Selector::Rule), Effect::Shadow(amount.is_multiple_of(2))),
    }
}
