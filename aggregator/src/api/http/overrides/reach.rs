//! A warning if no filter counts where a control applies, as the name is probably mistyped. The control is stored
//! nevertheless, since filters may connect later.

use crate::auth::Caller;
use crate::region::services::Services;
use crate::region::status::counters::Rule;
use std::collections::BTreeSet;
use weir_core::control::{ALL_NAMESPACES, Target, Who};

/// Most names in a warning.
const MAX_NAMES: usize = 5;

/// The warning; `None` if a filter counts there, or no filter has reported its rules.
pub(super) fn warning(services: &Services, caller: &Caller, target: &Target) -> Option<String> {
    let mut rules = services.status.counters.lock().rules(services.moment().mono);
    let peers = services.status.peers.all();
    rules.extend(peers.iter().flat_map(|peer| peer.status.rules.iter().cloned()));
    unheard(&rules, target, |workspace| caller.workspace(Some(workspace.as_bytes())).is_some())
}

/// Names in workspaces that the caller may not use are left out.
fn unheard(rules: &[Rule], target: &Target, may_name: impl Fn(&str) -> bool) -> Option<String> {
    let name = |rule: &'_ Rule| match target.who {
        Who::Rule => rule.name.clone(),
        Who::Identifier(_) | Who::Network(_) => rule.namespace.clone(),
    };
    let is_there = |rule: &Rule| {
        rule.workspace == target.workspace && (target.scope == ALL_NAMESPACES || name(rule) == target.scope)
    };
    if rules.is_empty() || rules.iter().any(is_there) {
        return None;
    }
    let what = match (&target.who, target.scope.as_str()) {
        (Who::Rule, rule) => format!("no filter of this region has reported a rule {rule:?}"),
        (_, ALL_NAMESPACES) => "no filter of this region has reported a rule".to_owned(),
        (_, namespace) => {
            format!("no filter of this region has reported a rule with namespace {namespace:?}")
        }
    };
    // The most likely names come first: the same name in another workspace, then others of the same workspace.
    let visible = rules.iter().filter(|rule| may_name(&rule.workspace));
    let ranked = visible.map(|rule| {
        let far = (name(rule) != target.scope, rule.workspace != target.workspace);
        (far, format!("{}/{}", rule.workspace, name(rule)))
    });
    let names: Vec<String> = ranked.collect::<BTreeSet<_>>().into_iter().map(|(_, name)| name).collect();
    let there = match names.len() {
        0 => String::new(),
        1..=MAX_NAMES => format!("; there is {}", names.join(", ")),
        more => format!("; there is {} and {} more", names[..MAX_NAMES].join(", "), more - MAX_NAMES),
    };
    Some(format!("{what} in workspace {:?}{there}", target.workspace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(workspace: &str, namespace: &str, name: &str) -> Rule {
        Rule {
            workspace: workspace.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Rule::default()
        }
    }

    fn of(workspace: &str, scope: &str, who: Who) -> Target {
        Target { workspace: workspace.into(), scope: scope.into(), who, window_ms: None }
    }

    #[test]
    fn names_that_no_filter_has() {
        let rules =
            [rule("demo", "per-key", "keys"), rule("shop", "carts", "carts"), rule("demo", "ip", "ips")];
        let said = |workspace, scope, who| unheard(&rules, &of(workspace, scope, who), |_| true);
        let alice = || Who::Identifier("alice".into());
        assert_eq!(said("demo", "per-key", alice()), None);
        assert_eq!(said("demo", "*", alice()), None);
        assert_eq!(said("demo", "keys", Who::Rule), None);
        let cases = [
            (
                said("default", "per-key", alice()),
                "namespace \"per-key\" in workspace \"default\"; there is demo/per-key, demo/ip",
            ),
            (
                said("default", "*", alice()),
                "a rule in workspace \"default\"; there is demo/ip, demo/per-key, shop/carts",
            ),
            (
                said("shop", "per-key", Who::Rule),
                "a rule \"per-key\" in workspace \"shop\"; there is shop/carts, demo/ips, demo/keys",
            ),
        ];
        for (said, expected) in cases {
            assert!(said.as_ref().is_some_and(|said| said.contains(expected)), "{said:?}: {expected}");
        }
        let closed = unheard(&rules, &of("other", "x", alice()), |workspace| workspace == "other");
        assert!(closed.is_some_and(|said| said.ends_with("in workspace \"other\"")));
        assert_eq!(unheard(&[], &of("default", "per-key", alice()), |_| true), None);
    }
}
