//! `/v1/keys`: every window of an identifier, its cells, and the components of each cell.

use super::explain::canonical;
use super::query::KeyQuery;
use super::text::text;
use crate::region::services::Services;
use serde::Serialize;
use std::time::{Duration, UNIX_EPOCH};
use weir_core::model::time::UnixMs;
use weir_core::model::window::{Position, Used};
use weir_core::region::exchange::BASELINE;
use weir_core::region::{CellState, Component, Explained};

/// All counts of an identifier.
#[derive(Debug, Serialize)]
pub struct Explanation {
    region: String,
    now: Moment,
    workspace: String,
    namespace: String,
    /// The identifier in the form in which it is counted.
    identifier: String,
    windows: Vec<Window>,
}

#[derive(Debug, Serialize)]
struct Window {
    duration_ms: u64,
    epoch: u32,
    resolution: u16,
    /// What counts against the limit now: the current cell and the weighted previous one, or with a hard limit all
    /// cells that the window touches.
    effective: u64,
    /// The lowest limit applied in these cells.
    limit: Option<u64>,
    cells: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Cell {
    sequence: u64,
    start: Moment,
    end: Moment,
    limit: Option<u64>,
    regional_total: u64,
    global_others: u64,
    /// Milliseconds since `global_others` last grew; absent if it never did.
    global_others_age_ms: Option<u64>,
    components: Vec<Origin>,
}

#[derive(Debug, Serialize)]
struct Origin {
    origin: String,
    own: u64,
    /// Milliseconds since it last grew.
    age_ms: u64,
}

#[derive(Debug, Serialize)]
struct Moment {
    unix_ms: u64,
    rfc3339: String,
}

/// All counts of the requested key, if there are any.
pub fn explain(services: &Services, asked: &KeyQuery) -> Option<Explanation> {
    let now = services.now();
    let identifier = canonical(asked);
    let found = services.explain(&asked.workspace, &asked.namespace, &identifier);
    if found.is_empty() {
        return None;
    }
    Some(Explanation {
        region: services.region_name.clone(),
        now: moment(now),
        workspace: text(&asked.workspace),
        namespace: text(&asked.namespace),
        identifier: text(&identifier),
        windows: found.iter().map(|key| window(key, now)).collect(),
    })
}

fn window(explained: &Explained, now: UnixMs) -> Window {
    let parts = explained.key.parts();
    let cell_ms = parts.cell_ms();
    let at = Position::at(now, cell_ms);
    let total = |sequence: Option<u64>| {
        let cell = explained.cells.iter().find(|cell| Some(cell.sequence) == sequence);
        cell.map_or(0, CellState::total)
    };
    let counts = (0..=u64::from(parts.resolution)).map(|back| total(at.sequence.checked_sub(back)));
    let used = Used::of(parts.resolution, counts);
    Window {
        duration_ms: parts.duration_ms,
        epoch: parts.epoch,
        resolution: parts.resolution,
        effective: used.effective(&at),
        limit: explained.cells.iter().filter_map(limit).min(),
        cells: explained.cells.iter().map(|state| cell(state, cell_ms, now)).collect(),
    }
}

fn cell(state: &CellState, cell_ms: u64, now: UnixMs) -> Cell {
    let start = UnixMs(state.sequence.saturating_mul(cell_ms));
    let age = |moment: UnixMs| now.0.saturating_sub(moment.0);
    let origin = |part: &Component| Origin {
        origin: if part.origin == BASELINE { "baseline".to_owned() } else { part.origin.to_string() },
        own: part.own,
        age_ms: age(part.updated),
    };
    Cell {
        sequence: state.sequence,
        start: moment(start),
        end: moment(UnixMs(start.0.saturating_add(cell_ms))),
        limit: limit(state),
        regional_total: state.regional_total(),
        global_others: state.global_others,
        global_others_age_ms: (state.global_others > 0).then(|| age(state.global_updated)),
        components: state.components.iter().map(origin).collect(),
    }
}

fn limit(cell: &CellState) -> Option<u64> {
    (cell.limit != u64::MAX).then_some(cell.limit)
}

fn moment(at: UnixMs) -> Moment {
    // The end of the year 9999, the last date that the format can represent.
    const LAST_MS: u64 = 253_402_300_799_999;
    let time = UNIX_EPOCH + Duration::from_millis(at.0.min(LAST_MS));
    Moment { unix_ms: at.0, rfc3339: humantime::format_rfc3339_millis(time).to_string() }
}
