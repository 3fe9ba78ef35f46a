//! `/v1/rules`: the decisions of each rule, summed over the region's aggregators, and the keys that a shadow rule would
//! deny. In pages, as a region may have thousands of rules.

use super::control::Limits;
use super::query::{Order, RulesQuery};
use super::top::key;
use super::view::TopKey;
use crate::region::services::Services;
use crate::region::status::counters::{Rates, Rule};
use crate::region::status::peers::FRESH_MS;
use crate::region::status::top::Scan;
use crate::telemetry::metrics::GlobalFigures;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_core::model::outcome::{Outcomes, RuleOutcome};
use weir_core::region::top::Scope;

/// The rules of the region's filters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// The region.
    pub region: String,
    /// By the region's time.
    pub now_unix_ms: u64,
    /// Number of aggregators whose figures are included, with this one.
    pub aggregators: u64,
    /// Number of other aggregators whose figures are missing or too old.
    pub aggregators_silent: u64,
    /// Whether the region's filters report further rules. An aggregator has at most 4 096, and sends others 256.
    pub left_out: bool,
    /// The outcomes that rules have, in the order in which they are shown.
    pub outcomes: Vec<ShownOutcome>,
    /// Number of rules that the query selects, on all of its pages.
    pub matching: u64,
    /// The sum of these rules.
    pub sum: Sum,
    /// The rules of the page.
    pub rules: Vec<ShownRule>,
}

/// An outcome of rules, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownOutcome {
    /// Its name in counts and rates.
    pub name: String,
    /// Its label.
    pub label: String,
    /// The figure that it is part of: `allowed`, `denied`, `shadow` or `other`.
    pub group: String,
}

/// The decisions of several rules together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sum {
    /// As of a rule.
    pub per_second: Rates,
    /// As of a rule.
    pub history: Outcomes<Vec<u64>>,
}

/// A rule, and the keys that it would deny.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownRule {
    /// The decisions of the rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// For a shadow rule with a sliding window: the keys over its limit now.
    pub would_deny: Option<WouldDeny>,
    /// The largest use of all regions beyond a limit of the rule within the last five to ten minutes, as part of the limit, as far as this
    /// aggregator found it. Absent if there was none.
    pub excess_ratio: Option<f64>,
}

/// The keys over the limit of a shadow rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WouldDeny {
    /// Number of keys over the limit, by the limits applied last. Keys whose limit live control has raised since are
    /// not counted if they are among the furthest.
    pub keys: u64,
    /// The keys furthest over the limit, in descending order.
    pub furthest: Vec<TopKey>,
}

impl ShownOutcome {
    fn of(outcome: RuleOutcome) -> ShownOutcome {
        ShownOutcome {
            name: outcome.name().to_owned(),
            label: outcome.label().to_owned(),
            group: outcome.group().name().to_owned(),
        }
    }
}

/// The rules that a query selects.
pub async fn rules(services: &Services, query: &RulesQuery) -> Rules {
    let scan = services.status.scan.latest(&services.hub, &services.status).await;
    let now = services.now();
    let limits = Limits::new(services, now);
    let global = services.state(|state, now| GlobalFigures::of(state, now));
    let mut found: BTreeMap<(String, String), Rule> = BTreeMap::new();
    let peers = services.status.peers.all();
    let (fresh, silent): (Vec<_>, Vec<_>) = peers.iter().partition(|peer| peer.age_ms() <= FRESH_MS);
    let own = services.status.counters.lock().rules(services.moment().mono);
    for rule in own.iter().chain(fresh.iter().flat_map(|peer| &peer.status.rules)) {
        let name = (rule.workspace.clone(), rule.name.clone());
        match found.get_mut(&name) {
            Some(known) => known.add(rule),
            None => drop(found.insert(name, rule.clone())),
        }
    }
    let are_complete = services.status.counters.lock().are_complete(services.moment().mono);
    let mut selected: Vec<Rule> = found.into_values().filter(|rule| query.selects(rule)).collect();
    let matching = selected.len() as u64;
    let mut all = Rule::default();
    selected.iter().for_each(|rule| all.add(rule));
    if query.order == Order::Busiest {
        selected.sort_by(|one, other| busy(other).total_cmp(&busy(one)));
    }
    let page = selected.into_iter().skip(query.offset).take(query.limit);
    Rules {
        region: services.region_name.clone(),
        now_unix_ms: now.0,
        left_out: !are_complete || fresh.iter().any(|peer| peer.status.rules_left_out),
        outcomes: RuleOutcome::ALL.iter().copied().map(ShownOutcome::of).collect(),
        aggregators: 1 + fresh.len() as u64,
        aggregators_silent: silent.len() as u64,
        matching,
        sum: Sum { per_second: all.per_second, history: all.history },
        rules: page.map(|rule| shown(rule, &limits, &scan, &global)).collect(),
    }
}

/// Decisions a second within the last minute.
fn busy(rule: &Rule) -> f64 {
    rule.per_second.last_1m.values().sum()
}

fn shown(rule: Rule, limits: &Limits<'_>, scan: &Scan, global: &GlobalFigures) -> ShownRule {
    let is_of_rule = |scope: &Scope| {
        scope.workspace == rule.workspace.as_bytes()
            && scope.namespace == rule.namespace.as_bytes()
            && scope.window_ms == rule.window_ms
    };
    let over = scan.top.scopes.iter().find(|over| is_of_rule(&over.scope));
    let excess = global.excesses.iter().find(|(scope, largest)| is_of_rule(scope) && *largest > 0);
    let excess_ratio = excess.map(|(_, thousandths)| *thousandths as f64 / 1e3);
    let would_deny = over.filter(|_| rule.shadow).map(|over| {
        let stand = over.furthest.iter().map(|one| (one, limits.ranked(one)));
        let (denied, allowed): (Vec<_>, Vec<_>) = stand.partition(|(_, usage)| usage.is_over());
        WouldDeny {
            keys: over.keys.saturating_sub(allowed.len() as u64),
            furthest: denied.into_iter().map(|(one, usage)| key(one, usage, scan, limits)).collect(),
        }
    });
    ShownRule { rule, would_deny, excess_ratio }
}
