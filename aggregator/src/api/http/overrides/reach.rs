//! A warning if no filter counts where a control applies, as its namespace, rule, window or identifier is probably mistyped. The
//! control is stored nevertheless, since filters may connect later.

use crate::auth::Caller;
use crate::controls::NAME_THE_DIGEST;
use crate::region::status::counters::Rule;
use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use weir_core::control::{ALL_NAMESPACES, Selector, Target};
use weir_core::fields::written;
use weir_core::matching::canonical::DIGEST_PREFIX;
use weir_core::matching::glob::matches_parts;
use weir_core::rules::is_digest;

/// Most names in a warning.
const MAX_NAMES: usize = 5;

/// Whether a control names an identifier where all rules count digests, so that it may be a secret, which is not to be stored.
pub(super) fn is_secret(rules: &[Rule], target: &Target) -> bool {
    names_raw_value(rules, target) == Some(true)
}

/// Whether all rules, or some, count digests where a control names an identifier that is none. `None` if no rule does, or the control is for
/// all namespaces, some of which count otherwise.
fn names_raw_value(rules: &[Rule], target: &Target) -> Option<bool> {
    let Selector::Identifier(text) = &target.selector else { return None };
    if is_digest(text.as_bytes()) {
        return None;
    }
    let concerned = rules.iter().filter(|rule| is_there(rule, target));
    let (hashed, others): (Vec<&Rule>, Vec<&Rule>) = concerned.partition(|rule| rule.identifier_parts == 0);
    let is_meant = others.is_empty() || target.scope != ALL_NAMESPACES;
    (is_meant && !hashed.is_empty()).then_some(others.is_empty())
}

/// The warning; `None` if a filter counts there, or no filter has reported its rules. `rules`: those of the region.
pub(super) fn warning(rules: &[Rule], caller: &Caller, target: &Target) -> Option<String> {
    let may_name = |workspace: &str| caller.workspace(Some(workspace.as_bytes())).is_some();
    unreported(rules, target, may_name)
        .or_else(|| unreported_window(rules, target))
        .or_else(|| names_raw_value(rules, target).map(|_| format!("some {NAME_THE_DIGEST}")))
        .or_else(|| unmatched_parts(rules, target))
        .or_else(|| uncounted_address(&target.selector))
}

/// Whether a rule counts where a control applies, whatever its window is.
fn is_there(rule: &Rule, target: &Target) -> bool {
    let name = name(rule, target);
    rule.workspace == target.workspace && (target.scope == ALL_NAMESPACES || name == target.scope)
}

/// What a target names of a rule.
fn name<'a>(rule: &'a Rule, target: &Target) -> &'a str {
    match target.selector {
        Selector::Rule => &rule.name,
        Selector::Identifier(_) | Selector::Network(_) => &rule.namespace,
    }
}

/// Warns of a window that no rule has where the control applies.
fn unreported_window(rules: &[Rule], target: &Target) -> Option<String> {
    let window_ms = target.window_ms?;
    // A ledger has the window of its zone, and states none.
    let concerned = rules.iter().filter(|rule| is_there(rule, target) && rule.window_ms > 0);
    let there: BTreeSet<u64> = concerned.map(|rule| rule.window_ms).collect();
    if there.is_empty() || there.contains(&window_ms) {
        return None;
    }
    let of = match target.scope.as_str() {
        ALL_NAMESPACES => format!("in workspace {:?}", target.workspace),
        namespace => format!("with namespace {namespace:?} in workspace {:?}", target.workspace),
    };
    let named: Vec<String> = there.iter().take(MAX_NAMES).map(|ms| written(*ms)).collect();
    let more = match there.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "no filter of this region has reported a rule {of} with a window of {}; there is {}{more}",
        written(window_ms),
        named.join(", ")
    ))
}

/// Warns of an identifier with more or fewer parts than those of the rules where the control applies.
fn unmatched_parts(rules: &[Rule], target: &Target) -> Option<String> {
    let Selector::Identifier(text) = &target.selector else { return None };
    let concerned = rules.iter().filter(|rule| is_there(rule, target));
    let there: BTreeSet<u32> = concerned.map(|rule| rule.identifier_parts).collect();
    let is_matched =
        |parts: &u32| matches_parts(text.as_bytes(), usize::try_from(*parts).unwrap_or_default());
    // A digest may be of any identifier.
    let is_digest = text.as_bytes().starts_with(DIGEST_PREFIX);
    if is_digest || there.is_empty() || there.contains(&0) || there.iter().any(is_matched) {
        return None;
    }
    let numbers: Vec<String> = there.iter().take(MAX_NAMES).map(u32::to_string).collect();
    let parts = if numbers == ["1"] { "1 part" } else { &format!("{} parts", numbers.join(" or ")) };
    Some(format!(
        "rules there count identifiers of {parts}, and {text:?} matches none of them; `|` separates parts, and `\\|` is one in a value"
    ))
}

/// Warns of an address that no rule counts in this form, unless its `ipv6_prefix` is 128.
fn uncounted_address(selector: &Selector) -> Option<String> {
    let Selector::Identifier(text) = selector else { return None };
    let address: Ipv6Addr = text.parse().ok()?;
    let counted = match address.to_ipv4_mapped() {
        Some(address) => format!("as {address}"),
        None => {
            let network = Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX));
            format!("by their network, by default {network}/64")
        }
    };
    Some(format!("rules count the requests of {address} {counted}; this matches none of them"))
}

/// Names in workspaces that the caller may not use are left out.
fn unreported(rules: &[Rule], target: &Target, may_name: impl Fn(&str) -> bool) -> Option<String> {
    if rules.is_empty() || rules.iter().any(|rule| is_there(rule, target)) {
        return None;
    }
    let what = match (&target.selector, target.scope.as_str()) {
        (Selector::Rule, rule) => format!("no filter of this region has reported a rule {rule:?}"),
        (_, ALL_NAMESPACES) => "no filter of this region has reported a rule".to_owned(),
        (_, namespace) => {
            format!("no filter of this region has reported a rule with namespace {namespace:?}")
        }
    };
    // The most likely names come first: the same name in another workspace, then others of the same workspace.
    let visible = rules.iter().filter(|rule| may_name(&rule.workspace));
    let ranked = visible.map(|rule| {
        let name = name(rule, target);
        let far = (name != target.scope, rule.workspace != target.workspace);
        (far, format!("{}/{name}", rule.workspace))
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

    fn of(workspace: &str, scope: &str, selector: Selector) -> Target {
        Target { workspace: workspace.into(), scope: scope.into(), selector, window_ms: None }
    }

    #[test]
    fn addresses_that_no_rule_counts() {
        for (identifier, part) in [
            ("2001:db8::1", Some("by default 2001:db8::/64; this")),
            ("::ffff:203.0.113.7", Some("as 203.0.113.7; this")),
            ("2001:db8::/64", None),
            ("203.0.113.7", None),
            ("alice", None),
        ] {
            let warning = uncounted_address(&Selector::Identifier(identifier.into()));
            assert_eq!(warning.is_some(), part.is_some(), "{warning:?}");
            assert!(warning.is_none_or(|warning| warning.contains(part.unwrap_or_default())));
        }
    }

    #[test]
    fn windows_that_no_rule_has() {
        let timed = |namespace, window_ms| Rule { window_ms, ..rule("demo", namespace, "r") };
        let rules =
            [timed("per-key", 60_000), timed("per-key", 10_000), timed("per-key", 0), timed("ip", 3_600_000)];
        let warning = |scope, window_ms| {
            let target = of("demo", scope, Selector::Identifier("alice".into()));
            unreported_window(&rules, &Target { window_ms, ..target })
        };
        for (scope, window_ms) in
            [("per-key", None), ("per-key", Some(10_000)), ("*", Some(3_600_000)), ("elsewhere", Some(1_000))]
        {
            assert_eq!(warning(scope, window_ms), None, "{scope} {window_ms:?}");
        }
        for (scope, part) in [
            ("per-key", "namespace \"per-key\" in workspace \"demo\" with a window of 1h; there is 10s, 1m"),
            ("ip", "there is 1h"),
        ] {
            let wrong_ms = if scope == "ip" { 10_000 } else { 3_600_000 };
            let warned = warning(scope, Some(wrong_ms)).unwrap();
            assert!(warned.ends_with(part), "{warned}");
        }
    }

    #[test]
    fn identifiers_of_other_parts_than_those_of_the_rules() {
        let of_parts =
            |namespace, identifier_parts| Rule { identifier_parts, ..rule("demo", namespace, "r") };
        let rules = [of_parts("one", 1), of_parts("two", 2), of_parts("hashed", 0), of_parts("hashed", 2)];
        let digest = "sha256:47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        for (scope, identifier, parts) in [
            ("one", "alice", None),
            ("two", "alice|GET", None),
            ("two", "alice|*", None),
            ("two", "*", None),
            ("two", digest, None),
            ("hashed", "alice", None),
            ("*", "alice", None),
            ("elsewhere", "alice", None),
            ("two", "alice", Some("of 2 parts, and \"alice\" matches none")),
            ("two", r"alice\|GET", Some("of 2 parts")),
            ("two", "alice|GET|x", Some("of 2 parts")),
            ("two", "a|*|c", Some("of 2 parts")),
            ("one", "auth0|5", Some("of 1 part, and \"auth0|5\" matches none")),
            ("one", r"auth0\|5", None),
        ] {
            let warning =
                unmatched_parts(&rules, &of("demo", scope, Selector::Identifier(identifier.into())));
            assert_eq!(warning.is_some(), parts.is_some(), "{scope} {identifier}: {warning:?}");
            assert!(warning.is_none_or(|warning| warning.contains(parts.unwrap_or_default())));
        }
        assert_eq!(unmatched_parts(&rules, &of("demo", "two", Selector::Rule)), None);
    }

    #[test]
    fn secrets_are_named_by_their_digests() {
        let of_parts =
            |namespace, identifier_parts| Rule { identifier_parts, ..rule("demo", namespace, "r") };
        let rules = [of_parts("one", 1), of_parts("hashed", 0), of_parts("both", 0), of_parts("both", 2)];
        for (scope, identifier, of_all) in [
            ("hashed", "s3cr3t", Some(true)),
            ("hashed", "s3cr*", Some(true)),
            ("both", "s3cr3t", Some(false)),
            ("one", "s3cr3t", None),
            ("elsewhere", "s3cr3t", None),
            ("*", "alice", None),
            ("hashed", "*", None),
            ("hashed", r"\-", None),
            ("hashed", "hmac:0123456789abcdef0123456789abcdef", None),
        ] {
            let target = of("demo", scope, Selector::Identifier(identifier.into()));
            assert_eq!(names_raw_value(&rules, &target), of_all, "{scope} {identifier}");
        }
        let everywhere = of("demo", "*", Selector::Identifier("s3cr3t".into()));
        assert_eq!(names_raw_value(&rules[1..2], &everywhere), Some(true));
    }

    #[test]
    fn names_that_no_filter_has() {
        let rules =
            [rule("demo", "per-key", "keys"), rule("shop", "carts", "carts"), rule("demo", "ip", "ips")];
        let warning =
            |workspace, scope, selector| unreported(&rules, &of(workspace, scope, selector), |_| true);
        let alice = || Selector::Identifier("alice".into());
        assert_eq!(warning("demo", "per-key", alice()), None);
        assert_eq!(warning("demo", "*", alice()), None);
        assert_eq!(warning("demo", "keys", Selector::Rule), None);
        let cases = [
            (
                warning("default", "per-key", alice()),
                "namespace \"per-key\" in workspace \"default\"; there is demo/per-key, demo/ip",
            ),
            (
                warning("default", "*", alice()),
                "a rule in workspace \"default\"; there is demo/ip, demo/per-key, shop/carts",
            ),
            (
                warning("shop", "per-key", Selector::Rule),
                "a rule \"per-key\" in workspace \"shop\"; there is shop/carts, demo/ips, demo/keys",
            ),
        ];
        for (warning, expected) in cases {
            assert!(
                warning.as_ref().is_some_and(|warning| warning.contains(expected)),
                "{warning:?}: {expected}"
            );
        }
        let closed = unreported(&rules, &of("other", "x", alice()), |workspace| workspace == "other");
        assert!(closed.is_some_and(|warning| warning.ends_with("in workspace \"other\"")));
        assert_eq!(unreported(&[], &of("default", "per-key", alice()), |_| true), None);
    }
}
