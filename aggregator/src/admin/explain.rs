//! `/v1/keys`: a key's counts in this region and in the others, their ages, the limit that applies, and what would
//! happen to a request now.

use super::control::{self, Limits, namespace_of};
use super::exact;
use super::query::KeyQuery;
use super::view::{Cell, Control, Exact, Explanation, OtherPart, Part, Reservation, Window};
use crate::controls::NAME_THE_DIGEST;
use crate::region::services::Services;
use crate::region::status::counters;
use crate::telemetry::text::{encode, identifier, text};
use std::collections::BTreeSet;
use weir_core::control::name_of;
use weir_core::fields::written;
use weir_core::matching::canonical::canonical_identifier;
use weir_core::model::exact::AlgorithmKind;
use weir_core::model::key::{Namespace, NodeId};
use weir_core::model::time::UnixMs;
use weir_core::model::window::Position;
use weir_core::region::exchange::BASELINE;
use weir_core::region::{CellState, Component, KeyCells, OtherComponent};
use weir_core::rules::is_digest;

/// The explanation of a key without windows.
pub const UNKNOWN: &str = "no counts of this identifier: it was not used in this window or the previous one, or it \
    belongs to another namespace or workspace (the workspace is `default` unless the query names one)";

/// Most windows of one identifier in an answer.
const MAX_WINDOWS: usize = 16;
/// Most namespaces suggested as alternatives.
const MAX_SCOPES: usize = 8;
/// Most Envoys of one cell in an answer, those with the highest counts.
const MAX_COMPONENTS: usize = 100;

/// All counts of the requested key; without windows if there are none.
pub async fn explain(services: &Services, query: &KeyQuery) -> Explanation {
    let (canonical, now) = (canonical(query), services.now());
    let exact = exact::uses(services, query, &canonical, &Limits::new(services, now)).await;
    let mut explanation = explain_counts(services, query, &canonical, exact);
    name_authors(services, &mut explanation).await;
    explanation
}

/// Adds who set the controls that apply, and why.
async fn name_authors(services: &Services, explanation: &mut Explanation) {
    let Explanation { control, windows, exact, .. } = explanation;
    let controls = || {
        let windows = windows.iter().map(|window| &window.control);
        windows.chain(exact.iter().map(|exact| &exact.control)).chain([&*control])
    };
    let is_controlled = controls().any(|control| !control.entries.is_empty());
    let Some(global) = services.global.as_ref().filter(|_| is_controlled) else { return };
    let (details, _) = services.control.details.of(&services.control.book(), global, services.now()).await;
    let windows = windows.iter_mut().map(|window| &mut window.control);
    let all = windows.chain(exact.iter_mut().map(|exact| &mut exact.control)).chain([control]);
    for entry in all.flat_map(|control| &mut control.entries) {
        if let Some(stored) = details.get(&entry.revision) {
            (entry.author, entry.reason) = (Some(stored.author.clone()), Some(stored.reason.clone()));
        }
    }
}

fn explain_counts(services: &Services, query: &KeyQuery, canonical: &[u8], exact: Vec<Exact>) -> Explanation {
    let now = services.now();
    let mut found = services.explain(&query.workspace, &query.namespace, canonical);
    found.sort_by_key(|key| key.key.parts().duration_ms);
    let (limits, mut windows) = (Limits::new(services, now), Vec::new());
    let control_of = |window_ms| control::control_of(services, query, canonical, window_ms, now);
    let is_wanted = |ms| query.window_ms.is_none_or(|wanted| wanted == ms);
    for key in found.iter().filter(|key| is_wanted(key.key.parts().duration_ms)).take(MAX_WINDOWS) {
        let control = control_of(key.key.parts().duration_ms);
        let mut window = window(services, key, (&limits, &control), now);
        control::judge(&mut window, control, now);
        windows.push(window);
    }
    let of_all = control_of(0);
    let here = Namespace { workspace: text(&query.workspace), name: text(&query.namespace) };
    // A zone has no windows that nodes count.
    let others = windows_of(services, &limits, &here).into_iter().filter(|_| query.zone.is_none());
    for window_ms in others.filter(|ms| is_wanted(*ms)) {
        let control = control_of(window_ms);
        let is_there = |window: &Window| window.duration_ms == window_ms && !window.outdated;
        let is_known = windows.iter().any(is_there) || windows.len() >= MAX_WINDOWS;
        windows.extend(unused(&limits, &here, (window_ms, control, &of_all), now).filter(|_| !is_known));
    }
    windows.sort_by_key(|window| window.duration_ms);
    let is_nothing = windows.is_empty() && of_all == Control::default();
    let lengths: Vec<u64> = found.iter().map(|key| key.key.parts().duration_ms).collect();
    let unknown = match is_nothing && (exact.is_empty() || query.window_ms.is_some()) {
        _ if names_raw_value(&limits, &here, canonical) => Some(NAME_THE_DIGEST.to_owned()),
        true => Some(unknown(query, &limits, &here, &lengths)),
        false => None,
    };
    Explanation {
        region: services.region_name.clone(),
        now_unix_ms: now.0,
        workspace: here.workspace,
        namespace: here.name,
        identifier: identifier(canonical),
        counted: encode(canonical),
        named: name_of(canonical),
        control: of_all,
        windows,
        exact,
        unknown,
    }
}

/// The windows of a namespace that rules or live control define.
fn windows_of(services: &Services, limits: &Limits<'_>, here: &Namespace<String>) -> BTreeSet<u64> {
    let mut lengths = control::windows_controlled(services, here);
    let rules = limits.rules_in(here.workspace.as_bytes(), here.name.as_bytes());
    lengths.extend(rules.filter(|rule| rule.is(AlgorithmKind::Window)).map(|rule| rule.window_ms));
    lengths
}

/// A window in which the key has used nothing, if live control applies to it. For a window without a rule, only
/// controls of that window matter.
fn unused(
    limits: &Limits<'_>,
    here: &Namespace<String>,
    (duration_ms, control, of_all): (u64, Control, &Control),
    now: UnixMs,
) -> Option<Window> {
    let here = Namespace { workspace: here.workspace.as_bytes(), name: here.name.as_bytes() };
    let rules: Vec<&counters::Rule> = limits.rules_by(here, AlgorithmKind::Window, duration_ms).collect();
    if control == Control::default() || (rules.is_empty() && control == *of_all) {
        return None;
    }
    let lowest = rules.iter().map(|rule| rule.limit).min();
    let of_rules: Vec<u64> = rules.iter().map(|rule| rule.limit).collect();
    let limit = control.limit_over(&of_rules, None).or(lowest);
    let mut window = Window {
        duration_ms,
        epoch: control.epoch,
        resolution: 1,
        limit,
        remaining: limit,
        passes: limit.map(|limit| limit > 0),
        wait_ms: limit.filter(|limit| *limit > 0).map(|_| 0),
        rules: rules.into_iter().map(|rule| limits.shown(rule)).collect(),
        ..Window::default()
    };
    control::judge(&mut window, control, now);
    Some(window)
}

/// Whether all rules of the namespace count digests, and `canonical` is none.
fn names_raw_value(limits: &Limits<'_>, here: &Namespace<String>, canonical: &[u8]) -> bool {
    let mut rules = limits.rules_in(here.workspace.as_bytes(), here.name.as_bytes()).peekable();
    !is_digest(canonical) && rules.peek().is_some() && rules.all(|rule| rule.identifier_parts == 0)
}

/// The text for a key without windows: its other windows, or the namespaces that filters count.
fn unknown(query: &KeyQuery, limits: &Limits<'_>, here: &Namespace<String>, lengths: &[u64]) -> String {
    if let (Some(window_ms), false) = (query.window_ms, lengths.is_empty()) {
        let mut lengths: Vec<String> = lengths.iter().map(|ms| written(*ms)).collect();
        lengths.dedup();
        let (window, others) = (written(window_ms), lengths.join(", "));
        return format!("this identifier has used nothing in a window of {window}, but has in {others}");
    }
    let scopes: BTreeSet<Namespace<&str>> = limits.region_rules().map(|rule| namespace_of(rule)).collect();
    if scopes.is_empty() || scopes.contains(&Namespace { workspace: &*here.workspace, name: &here.name }) {
        return UNKNOWN.to_owned();
    }
    let shown: Vec<String> = scopes
        .iter()
        .take(MAX_SCOPES)
        .map(|Namespace { workspace, name }| {
            format!(
                "namespace {} of workspace {}",
                identifier(name.as_bytes()),
                identifier(workspace.as_bytes())
            )
        })
        .collect();
    format!(
        "{UNKNOWN}; filters count in {}{}",
        shown.join(", "),
        if scopes.len() > shown.len() { ", …" } else { "" }
    )
}

/// The identifier in the form in which it is counted.
pub fn canonical(query: &KeyQuery) -> Vec<u8> {
    if query.is_counted {
        return query.identifier.clone();
    }
    let mut canonical = Vec::new();
    canonical_identifier(&query.identifier, &mut canonical);
    canonical
}

fn window(
    services: &Services,
    key: &KeyCells,
    (limits, control): (&Limits<'_>, &Control),
    now: UnixMs,
) -> Window {
    let (parts, usage) = (key.key.parts(), limits.explained(key, control));
    let at = Position::at(now, parts.cell_ms());
    let here = services.status.streams.nodes();
    let reserved = reserved(key, &here, now);
    Window {
        duration_ms: parts.duration_ms,
        epoch: parts.epoch,
        resolution: parts.resolution,
        used: usage.used,
        global_others: usage.global_others,
        reserved: reserved.iter().map(|of| of.amount).fold(0, u64::saturating_add),
        reservations: reserved.into_iter().take(MAX_COMPONENTS).collect(),
        limit: usage.limit,
        remaining: usage.limit.map(|limit| limit.saturating_sub(usage.used)),
        passes: usage.limit.map(|_| usage.wait_ms == Some(0)),
        wait_ms: usage.wait_ms,
        rules: limits.rules(&parts).map(|rule| limits.shown(rule)).collect(),
        cells: key.cells.iter().map(|state| cell(services, &here, state, &at, now)).collect(),
        ..Window::default()
    }
}

/// What the nodes that are connected `here` have reserved of a key, highest first. Those that have left settle nothing any more.
fn reserved(key: &KeyCells, here: &BTreeSet<NodeId>, now: UnixMs) -> Vec<Reservation> {
    let held = key.reserved.iter().filter(|held| here.contains(&held.node) && held.may_last(now));
    let mut reserved: Vec<Reservation> = held
        .map(|held| Reservation {
            node: held.node.to_string(),
            amount: held.amount,
            age_ms: now.0.saturating_sub(held.read.0),
        })
        .collect();
    reserved.sort_by_key(|held| std::cmp::Reverse(held.amount));
    reserved
}

fn cell(services: &Services, here: &BTreeSet<NodeId>, state: &CellState, at: &Position, now: UnixMs) -> Cell {
    let start = state.sequence.saturating_mul(at.cell_ms);
    let age = |moment: UnixMs| now.0.saturating_sub(moment.0);
    let part = |component: &Component| Part {
        node: if component.node == BASELINE { "baseline".to_owned() } else { component.node.to_string() },
        here: here.contains(&component.node),
        own: component.own,
        age_ms: age(component.updated),
    };
    let other = |component: &OtherComponent| OtherPart {
        region: services.region(|region, _| text(region.name_of_other(component.region))),
        count: component.count,
        age_ms: age(component.updated),
    };
    let mut components: Vec<&Component> = state.components.iter().collect();
    components.sort_by_key(|component| std::cmp::Reverse(component.own));
    Cell {
        sequence: state.sequence,
        start_unix_ms: start,
        end_unix_ms: start.saturating_add(at.cell_ms),
        current: state.sequence == at.sequence,
        limit: (state.limit != u64::MAX).then_some(state.limit),
        regional_total: state.regional_total(),
        global_others: state.global_others,
        regions: state.others.iter().map(other).collect(),
        components: components.iter().take(MAX_COMPONENTS).map(|component| part(component)).collect(),
        components_all: components.len() as u64,
    }
}
