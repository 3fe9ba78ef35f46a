//! What `/v1/explain` says: a key in this region and in the others, with ages; which limit applies, and what would happen to
//! a request now.
//!
//! Leaves to others: the query (`query`), the counts (`weir_core::region`), the others' rows (`global::looks`).

use super::control::{self, Control, Limits};
use super::query::KeyQuery;
use super::text::{encode, identifier, text};
use crate::global::Global;
use crate::shared::Shared;
use crate::window::tallies;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weir_core::key::{KeyParts, OriginId};
use weir_core::region::exchange::BASE;
use weir_core::region::{CellState, Component, Explained};
use weir_core::rules::identifier::canonical_identifier;
use weir_core::time::UnixMs;
use weir_core::window::Position;

/// What is said of a key without windows.
pub const UNKNOWN: &str = "nothing is known of this identifier: it was not used in this window or the last one, or it goes by \
    another workspace or namespace";

/// Most windows of one identifier that are shown.
const MAX_WINDOWS: usize = 16;
/// Most Envoys of one cell that are shown, those that used most.
const MAX_COMPONENTS: usize = 100;

/// All that is known of an identifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The region that explains.
    pub region: String,
    /// By the aggregator's clock.
    pub now_unix_ms: u64,
    /// Whose limits.
    pub workspace: String,
    /// Which family of limits.
    pub namespace: String,
    /// In the form in which it is counted, as far as that is text.
    pub identifier: String,
    /// The same percent-encoded.
    pub counted: String,
    /// What live control says of it, but for what it says of some windows alone.
    pub control: Control,
    /// By length; none if nothing is known of the key.
    pub windows: Vec<Window>,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// Its length.
    pub duration_ms: u64,
    /// Raised by resets.
    pub epoch: u32,
    /// Cells per window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// What of that other regions used.
    pub global_others: u64,
    /// The limit that live control says, else the lowest that was applied in the newest cell; absent if none is known.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: Option<u64>,
    /// Whether a cost of 1 would pass now, as far as this aggregator knows; absent without a limit.
    pub passes: Option<bool>,
    /// Until it would, if nothing more is used; absent if it never does.
    pub wait_ms: Option<u64>,
    /// A reset has ended its epoch: it is counted elsewhere.
    pub outdated: bool,
    /// What live control says of this window.
    pub control: Control,
    /// Rules that count here, as far as filters have told of them.
    pub rules: Vec<Rule>,
    /// By sequence.
    pub cells: Vec<Cell>,
    /// What each region has written of these cells, this one too. Regions write of keys past half their limits, every ten
    /// seconds.
    pub regions: Vec<Region>,
    /// Why that is not known.
    pub regions_unknown: Option<String>,
}

/// A rule whose keys these are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Its limit before overrides.
    pub limit: u64,
    /// It never denies.
    pub shadow: bool,
}

/// One cell of a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// Which one.
    pub sequence: u64,
    /// When it began.
    pub start_unix_ms: u64,
    /// When it ends.
    pub end_unix_ms: u64,
    /// It is the one that is now.
    pub current: bool,
    /// The lowest limit applied in it.
    pub limit: Option<u64>,
    /// What this region used.
    pub regional_total: u64,
    /// What the others used.
    pub global_others: u64,
    /// Since that last grew; absent if it never did.
    pub global_others_age_ms: Option<u64>,
    /// Envoys that used some, the most first; the first 100.
    pub components: Vec<Part>,
    /// How many there are.
    pub components_all: u64,
}

/// An Envoy's share of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// Its process; `base` for what nobody knows the origin of.
    pub origin: String,
    /// It is connected to this aggregator.
    pub here: bool,
    /// How much it used.
    pub own: u64,
    /// Since that last grew.
    pub age_ms: u64,
}

/// A region's share of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its name.
    pub region: String,
    /// It is this one.
    pub own: bool,
    /// Which cell.
    pub sequence: u64,
    /// How much it used.
    pub count: u64,
    /// Since it wrote that, by its clock and ours.
    pub age_ms: u64,
}

/// Everything known of the key that is asked about; without windows if that is nothing.
pub async fn explain(shared: &Shared, asked: &KeyQuery) -> Explanation {
    let canonical = canonical(asked);
    let now = shared.now();
    let mut found = shared.explain(&asked.workspace, &asked.namespace, &canonical);
    found.retain(|key| asked.window_ms.is_none_or(|ms| ms == key.key.parts().duration_ms));
    found.sort_by_key(|key| key.key.parts().duration_ms);
    let (limits, mut windows) = (Limits::new(shared, now), Vec::new());
    for key in found.iter().take(MAX_WINDOWS) {
        let said = control::said(shared, asked, &canonical, key.key.parts().duration_ms, now);
        let mut window = window(shared, key, (&limits, &said), now);
        control::judge(&mut window, said, now);
        if let Some(global) = &shared.global {
            add_regions(&mut window, shared, global, key, now).await;
        }
        windows.push(window);
    }
    Explanation {
        region: shared.region_name.clone(),
        now_unix_ms: now.0,
        workspace: text(&asked.workspace),
        namespace: text(&asked.namespace),
        identifier: identifier(&canonical),
        counted: encode(&canonical),
        control: control::said(shared, asked, &canonical, 0, now),
        windows,
    }
}

/// The identifier as it is counted.
pub fn canonical(asked: &KeyQuery) -> Vec<u8> {
    if asked.is_counted {
        return asked.identifier.clone();
    }
    let mut canonical = Vec::new();
    canonical_identifier(&asked.identifier, &mut canonical);
    canonical
}

fn window(shared: &Shared, key: &Explained, (limits, said): (&Limits<'_>, &Control), now: UnixMs) -> Window {
    let (parts, standing) = (key.key.parts(), limits.explained(key, said));
    let at = Position::at(now, parts.cell_ms());
    let here = shared.window.peers.origins();
    Window {
        duration_ms: parts.duration_ms,
        epoch: parts.epoch,
        resolution: parts.resolution,
        used: standing.used,
        global_others: standing.global_others,
        limit: standing.limit,
        remaining: standing.limit.map(|limit| limit.saturating_sub(standing.used)),
        passes: standing.limit.map(|_| standing.wait_ms == Some(0)),
        wait_ms: standing.wait_ms,
        rules: limits.rules(&parts).map(shown).collect(),
        cells: key.cells.iter().map(|state| cell(&here, state, &at, now)).collect(),
        ..Window::default()
    }
}

/// Whether a rule counts a key.
pub fn counts(rule: &tallies::Rule, key: &KeyParts<'_>) -> bool {
    rule.strategy == "window"
        && rule.window_ms == key.duration_ms
        && rule.workspace.as_bytes() == key.workspace
        && rule.namespace.as_bytes() == key.namespace
}

fn shown(rule: &tallies::Rule) -> Rule {
    Rule { name: rule.name.clone(), limit: rule.limit, shadow: rule.shadow }
}

fn cell(here: &BTreeSet<OriginId>, state: &CellState, at: &Position, now: UnixMs) -> Cell {
    let start = state.sequence.saturating_mul(at.cell_ms);
    let age = |moment: UnixMs| now.0.saturating_sub(moment.0);
    let part = |component: &Component| Part {
        origin: if component.origin == BASE { "base".to_owned() } else { component.origin.to_string() },
        here: here.contains(&component.origin),
        own: component.own,
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
        global_others_age_ms: (state.global_others > 0).then(|| age(state.global_updated)),
        components: components.iter().take(MAX_COMPONENTS).map(|component| part(component)).collect(),
        components_all: components.len() as u64,
    }
}

async fn add_regions(window: &mut Window, shared: &Shared, global: &Global, key: &Explained, now: UnixMs) {
    let parts = key.key.parts();
    let oldest = Position::at(now, parts.cell_ms()).sequence.saturating_sub(u64::from(parts.resolution));
    match global.looks.shares(shared, global, &key.key, oldest).await {
        Ok(shares) => {
            let region = |share: &crate::database::Share| Region {
                region: text(&share.region),
                own: share.region == shared.region_name.as_bytes(),
                sequence: share.sequence,
                count: share.count,
                age_ms: now.0.saturating_sub(share.updated.0),
            };
            window.regions = shares.iter().map(region).collect();
        }
        Err(reason) => window.regions_unknown = Some(reason),
    }
}
