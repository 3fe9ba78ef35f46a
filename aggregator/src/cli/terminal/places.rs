//! The key that a command names, and where an identifier may be counted, if the command names no namespace: the namespaces of the workspace's rules, and those of keys that a
//! search finds, such as limits of the rate-limit service.

use super::client::Client;
use super::error::TerminalError;
use super::format::plain;
use crate::admin::rules::Rules;
use crate::admin::top::Top;
use crate::admin::view::Explanation;
use crate::controls::NAME_THE_DIGEST;
use crate::telemetry::text::encode;
use std::collections::BTreeSet;

/// Most namespaces and zones that are asked for one identifier.
const MAX_PLACES: usize = 64;
/// Most of them that an error names.
const MAX_NAMED: usize = 16;

/// The key to explain.
#[derive(Clone, Debug)]
pub struct KeyName {
    /// The workspace.
    pub workspace: String,
    /// The namespace; `None` for a zone, or for all namespaces.
    pub namespace: Option<String>,
    /// The zone of a ledger.
    pub zone: Option<u32>,
    /// The identifier.
    pub identifier: String,
    /// The only window to show.
    pub window_ms: Option<u64>,
}

impl KeyName {
    /// The path of its explanation.
    pub(super) fn path(&self) -> String {
        let window = self.window_ms.map(|ms| format!("&window_ms={ms}")).unwrap_or_default();
        let text = |text: &str| encode(text.as_bytes());
        let place = match self.zone {
            Some(zone) => format!("zone={zone}"),
            None => format!("namespace={}", text(self.namespace.as_deref().unwrap_or_default())),
        };
        let (workspace, identifier) = (text(&self.workspace), text(&self.identifier));
        format!("/v1/keys?workspace={workspace}&{place}&identifier={identifier}{window}")
    }
}

/// A namespace, or a zone of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Namespace(String),
    Zone(u32),
}

/// The explanations of an identifier in each place that counts or controls it. There is at least one.
pub(super) async fn explanations(client: &Client, key: &KeyName) -> Result<Vec<Explanation>, TerminalError> {
    let search = format!("/v1/top?text={}", encode(key.identifier.as_bytes()));
    let (rules, found) = tokio::join!(client.get("/v1/rules"), client.get(&search));
    let places = places(&rules?, &found?, &key.workspace);
    let (mut known, mut is_hashed) = (Vec::new(), false);
    for place in places.iter().take(MAX_PLACES) {
        let (namespace, zone) = match place {
            Place::Namespace(name) => (Some(name.clone()), None),
            Place::Zone(zone) => (None, Some(*zone)),
        };
        let explanation: Explanation = client.get(&KeyName { namespace, zone, ..key.clone() }.path()).await?;
        is_hashed |= explanation.unknown.as_deref() == Some(NAME_THE_DIGEST);
        known.extend(Some(explanation).filter(|explanation| explanation.unknown.is_none()));
    }
    match known.is_empty() {
        true => Err(TerminalError::Refused(unknown(&places, &key.workspace, is_hashed))),
        false => Ok(known),
    }
}

/// Those of a workspace. Zones belong to none.
fn places(rules: &Rules, found: &Top, workspace: &str) -> BTreeSet<Place> {
    let of_rules = rules.rules.iter().map(|shown| &shown.rule);
    let of_rules =
        of_rules.map(|rule| (&rule.workspace, &rule.namespace, Some(rule.zone).filter(|zone| *zone > 0)));
    let of_keys = found.keys.iter().map(|key| (&key.workspace, &key.namespace, key.zone));
    let place = |(of, namespace, zone): (&String, &String, Option<u32>)| match zone {
        Some(zone) => Some(Place::Zone(zone)),
        None => (of == workspace && !namespace.is_empty()).then(|| Place::Namespace(namespace.clone())),
    };
    of_rules.chain(of_keys).filter_map(place).collect()
}

/// The error for an identifier that no place knows.
fn unknown(places: &BTreeSet<Place>, workspace: &str, is_hashed: bool) -> String {
    let names = |place: &Place| match place {
        Place::Namespace(name) => plain(name),
        Place::Zone(zone) => format!("zone {zone}"),
    };
    let workspace = plain(workspace);
    if places.is_empty() {
        return format!(
            "no filter has reported rules of workspace {workspace}; see --workspace, --namespace and --zone"
        );
    }
    let named: Vec<String> = places.iter().take(MAX_NAMED).map(names).collect();
    let more = if places.len() > named.len() { ", …" } else { "" };
    let digest = if is_hashed { format!("; {NAME_THE_DIGEST}") } else { String::new() };
    format!(
        "no counts of this identifier: it was not used in this window or the previous one in any namespace of workspace {workspace}, which \
         are {}{more}{digest}; see --workspace, --namespace and --zone",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::rules::ShownRule;
    use crate::admin::view::TopKey;
    use crate::region::status::counters::Rule;

    #[test]
    fn namespaces_of_rules_and_of_found_keys_are_asked() {
        let rule = |workspace: &str, namespace: &str| ShownRule {
            rule: Rule { workspace: workspace.into(), namespace: namespace.into(), ..Rule::default() },
            ..ShownRule::default()
        };
        let key = |namespace: &str, zone| TopKey {
            workspace: "default".into(),
            namespace: namespace.into(),
            zone,
            ..TopKey::default()
        };
        let rules = vec![rule("default", "api"), rule("other", "login"), rule("default", "api")];
        let rules = Rules { rules, ..Rules::default() };
        let found =
            Top { keys: vec![key("rls|d", None), key("", Some(7)), key("api", None)], ..Top::default() };
        let all = places(&rules, &found, "default");
        let expected = [Place::Namespace("api".into()), Place::Namespace("rls|d".into()), Place::Zone(7)];
        assert_eq!(all, expected.into());
        let error = unknown(&all, "default", true);
        assert!(
            error.contains("which are api, rls|d, zone 7; ") && error.contains(NAME_THE_DIGEST),
            "{error}"
        );
        assert!(unknown(&BTreeSet::new(), "x", false).contains("workspace x"));
    }
}
