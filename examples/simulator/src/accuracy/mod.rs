//! The error of Weir's limits without faults, measured over a grid of limits, windows, loads and topologies.
//!
//! - `bounds`: the error that the design permits.

pub mod bounds;

use crate::accuracy::bounds::Case;
use crate::measure::Comparison;
use crate::measure::observe::NoObserver;
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Network, Plan, Rule, Schedule, Topology};
use crate::run::{Expected, run};
use serde::Serialize;
use std::fmt::Write as _;
use weir_core::region::SHORTEST_PUBLISHED_MS;

/// Regions, and Envoys of each region.
const PLACES: [(u64, u64); 7] = [(1, 1), (1, 3), (1, 5), (1, 9), (1, 33), (3, 1), (10, 1)];
const LIMITS: [u64; 4] = [5, 50, 500, 10_000];
const WINDOWS_MS: [u64; 4] = [1_000, 10_000, 60_000, 300_000];
const LOADS: [f64; 6] = [0.5, 0.9, 1.0, 1.5, 2.0, 10.0];
/// Windows from here on are a row of their own, in milliseconds.
const LONG_MS: u64 = 60_000;
/// Least traffic: this many windows, and this many milliseconds.
const WINDOWS: u64 = 3;
const LEAST_MS: u64 = 20_000;
/// Least traffic with several regions, in intervals of the exchange between regions.
const INTERVALS: u64 = 2;

/// The measurement of one case.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cell {
    /// Number of regions.
    pub regions: u64,
    /// Envoys of each region.
    pub envoys: u64,
    /// The limit in a window.
    pub limit: u64,
    /// Length of the window in milliseconds.
    pub window_ms: u64,
    /// Rate of the traffic divided by limit ÷ window.
    pub load: f64,
    /// What Weir admitted more than one limiter in one place, as part of what that limiter admitted.
    pub more: f64,
    /// What Weir admitted less, as part of the same.
    pub less: f64,
    /// Largest excess over the limit at any moment, as part of the limit.
    pub over: f64,
    /// The design's bound of `over`.
    pub over_bound: f64,
    /// The design's bound of `less`.
    pub less_bound: f64,
    /// Whether the run failed.
    pub failed: bool,
}

/// All cases of the grid.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (regions, envoys) in PLACES {
        for limit in LIMITS {
            for window_ms in WINDOWS_MS {
                cases.extend(LOADS.map(|load| Case { regions, envoys, limit, window_ms, load }));
            }
        }
    }
    cases
}

/// The plan that measures a case.
pub fn plan(case: &Case, seed: u64) -> Plan {
    let Case { regions, envoys, limit, window_ms, load } = *case;
    let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let topology = Topology { regions: size(regions), ..Topology::region(size(envoys)) };
    let rate = load * limit as f64 * 1_000.0 / window_ms as f64;
    let shape = Shape::Steady { identifier: 1, rate };
    let intervals_ms = if regions > 1 { INTERVALS * crate::accuracy::bounds::interval_ms() } else { 0 };
    Plan {
        seed,
        topology,
        rules: vec![Rule::new(limit, window_ms)],
        traffic: vec![Traffic { from_ms: 0, until_ms: None, rules: 1, cost: (1, 1), at: Vec::new(), shape }],
        faults: Vec::new(),
        network: Network::default(),
        schedule: Schedule::default(),
        settle_ms: 3_000,
        traffic_ms: (WINDOWS * window_ms).max(LEAST_MS).max(intervals_ms),
        calls: None,
        quiet_ms: 0,
    }
}

/// Measures a case.
pub fn measure(case: &Case, seed: u64) -> Cell {
    let outcome = run(&plan(case, seed), &Expected::default(), &mut NoObserver);
    let Case { regions, envoys, limit, window_ms, load } = *case;
    let (more, less, over) =
        (outcome.comparison.beyond(), outcome.comparison.under(), outcome.comparison.over);
    let (over_bound, less_bound, failed) = (case.over(), case.under(), !outcome.failures.is_empty());
    Cell { regions, envoys, limit, window_ms, load, more, less, over, over_bound, less_bound, failed }
}

/// All measurements, as Markdown.
pub fn full_table(cells: &[Cell]) -> String {
    let mut text =
        "| regions × Envoys | limit | window | load | more | less | bound | worst moment | bound |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for cell in cells {
        let Cell { regions, envoys, limit, window_ms, load, .. } = cell;
        let _ = write!(text, "| {regions} × {envoys} | {limit} | {} s | {load} | ", window_ms / 1_000);
        let shares = [cell.more, cell.less, cell.less_bound, cell.over, cell.over_bound].map(percent);
        let _ = writeln!(text, "{} |", shares.join(" | "));
    }
    text
}

/// A row for each topology with its median and worst measurements, as Markdown.
pub fn table(cells: &[Cell]) -> String {
    let mut text = "| regions × Envoys | more: median, worst | at | less: median, worst | at | \
                    worst moment: median, worst | its bound | at | above a bound |\n|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (regions, envoys, windows) in rows() {
        let here = || {
            cells.iter().filter(move |cell| {
                (cell.regions, cell.envoys) == (regions, envoys) && windows.hold(cell.window_ms)
            })
        };
        let (Some(more), Some(less), Some(over)) = (
            spread(here(), |cell| cell.more),
            spread(here(), |cell| cell.less),
            spread(here(), |cell| cell.over),
        ) else {
            continue;
        };
        let beyond = here().filter(|cell| cell.over > cell.over_bound || cell.less > cell.less_bound).count();
        let [more_at, less_at, over_at] = [more.1, less.1, over.1].map(at);
        let _ = writeln!(
            text,
            "| {regions} × {envoys}{} | {}, {} | {more_at} | {}, {} | {less_at} | {}, {} | {} | {over_at} | {beyond} of {} |",
            windows.name(),
            percent(more.0),
            percent(more.1.more),
            percent(less.0),
            percent(less.1.less),
            percent(over.0),
            percent(over.1.over),
            percent(over.1.over_bound),
            here().count(),
        );
    }
    text
}

/// The windows of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Windows {
    All,
    /// Too short to be published: each region has its own limit.
    Unshared,
    Short,
    Long,
}

impl Windows {
    fn hold(self, window_ms: u64) -> bool {
        match self {
            Windows::All => true,
            Windows::Unshared => window_ms < SHORTEST_PUBLISHED_MS,
            Windows::Short => (SHORTEST_PUBLISHED_MS..LONG_MS).contains(&window_ms),
            Windows::Long => window_ms >= LONG_MS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Windows::All => "",
            Windows::Unshared => ", windows below 10 s",
            Windows::Short => ", windows of 10 s",
            Windows::Long => ", windows from 60 s",
        }
    }
}

fn rows() -> impl Iterator<Item = (u64, u64, Windows)> {
    PLACES.into_iter().flat_map(|(regions, envoys)| {
        let windows: &[Windows] =
            if regions > 1 { &[Windows::Long, Windows::Short, Windows::Unshared] } else { &[Windows::All] };
        windows.iter().map(move |windows| (regions, envoys, *windows))
    })
}

/// Median of `of`, and the measurement with the largest.
fn spread<'a>(cells: impl Iterator<Item = &'a Cell>, of: fn(&Cell) -> f64) -> Option<(f64, &'a Cell)> {
    let mut cells: Vec<&Cell> = cells.collect();
    cells.sort_by(|a, b| of(a).total_cmp(&of(b)));
    let median = of(cells.get(cells.len() / 2)?);
    cells.last().map(|worst| (median, *worst))
}

fn at(cell: &Cell) -> String {
    format!("{} in {} s at {}×", cell.limit, cell.window_ms / 1_000, cell.load)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Numbers of Envoys in the runs with Zipf traffic.
pub const ZIPF_ENVOYS: [usize; 2] = [1, 3];

/// Traffic like that of a large site: 300 000 identifiers by Zipf's law, of which a few are far above the limit.
pub fn zipf_plan(envoys: usize, seed: u64) -> Plan {
    let case = Case { regions: 1, envoys: envoys as u64, limit: 10_000, window_ms: 60_000, load: 0.0 };
    let shape = Shape::Zipf { identifiers: 300_000, exponent: 1.0, rate: 10_000.0 };
    let mut plan = plan(&case, seed);
    plan.topology.buckets = 65_536;
    plan.rules = vec![Rule { trust_first: true, ..Rule::new(case.limit, case.window_ms) }];
    plan.traffic = vec![Traffic { shape, ..plan.traffic.remove(0) }];
    plan
}

/// The results of the Zipf traffic, as Markdown.
pub fn zipf_table(runs: &[(usize, Comparison)]) -> String {
    let mut text = "| Envoys | requests | decided differently from the exact log | of these by the formula alone | \
                    decided differently from one place | too many or too few per source |\n|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (envoys, comparison) in runs {
        let share = |count: u64| format!("{:.4} %", 100.0 * count as f64 / comparison.requests.max(1) as f64);
        let central = comparison.central.beyond + comparison.central.wrongly_denied;
        let _ = writeln!(
            text,
            "| {envoys} | {} | {} | {} | {} | {} |",
            comparison.requests,
            share(comparison.exact.beyond + comparison.exact.wrongly_denied),
            share(comparison.law_differs),
            share(central),
            share(comparison.off_by),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(envoys: u64, limit: u64, over: f64) -> Cell {
        let (more, less, over_bound) = (over / 2.0, 0.001, 0.05);
        let (regions, window_ms, load, less_bound, failed) = (1, 10_000, 1.5, 0.01, false);
        Cell { regions, envoys, limit, window_ms, load, more, less, over, over_bound, less_bound, failed }
    }

    #[test]
    fn tables_show_the_median_and_the_worst_case() {
        let cells = [cell(3, 5, 0.2), cell(3, 50, 0.04), cell(3, 500, 0.0), cell(9, 5, 0.0)];
        let text = table(&cells);
        assert_eq!(text.lines().count(), 4, "{text}");
        let expected = "| 1 × 3 | 2.00 %, 10.00 % | 5 in 10 s at 1.5× | 0.10 %, 0.10 % | 500 in 10 s at 1.5× | \
                        4.00 %, 20.00 % | 5.00 % | 5 in 10 s at 1.5× | 1 of 3 |";
        assert_eq!(text.lines().nth(2), Some(expected));
        assert_eq!(full_table(&cells).lines().count(), 6);
        assert_eq!(cases().len(), 7 * 4 * 4 * 6);
    }

    #[test]
    fn one_envoy_is_exact() {
        // An Envoy's clock and the reference's may differ by a millisecond, which moves a request into another cell.
        for limit in [5, 500] {
            let case = Case { regions: 1, envoys: 1, limit, window_ms: 10_000, load: 1.5 };
            let cell = measure(&case, 1);
            assert!(!cell.failed && cell.more <= 0.01 && cell.less <= 0.01, "{cell:?}");
        }
    }

    /// What `ACCURACY.md` states of the worst of a thousand seeds, and of two cells of the grid.
    #[test]
    fn the_page_states_what_is_measured() {
        let page = include_str!("../../ACCURACY.md");
        let flooded = (crate::scenarios::find("one-flooded").unwrap().plan)(733);
        let over = run(&flooded, &Expected::default(), &mut NoObserver).comparison.over;
        let stated = format!("{:.1} % (scenario `one-flooded`", 100.0 * over);
        assert!(page.contains(&stated), "the page does not state {stated}");
        for (regions, envoys, limit, window_ms) in [(1, 5, 10_000, 1_000), (10, 1, 50, 60_000)] {
            let cell = measure(&Case { regions, envoys, limit, window_ms, load: 10.0 }, 1);
            let stated = format!(", {} | ", percent(cell.over));
            let mut rows = page.lines().filter(|line| line.starts_with(&format!("| {regions} × {envoys}")));
            assert!(rows.any(|row| row.contains(&stated)), "no row of {regions} × {envoys} states{stated}");
        }
    }

    #[test]
    fn a_sample_lies_within_the_bounds() {
        for (regions, envoys, limit, window_ms, load) in [
            (1, 3, 50, 1_000, 1.5),
            (1, 3, 500, 10_000, 2.0),
            (1, 9, 500, 1_000, 0.9),
            (1, 9, 50, 10_000, 10.0),
            (3, 1, 50, 10_000, 10.0),
            (3, 1, 500, 60_000, 1.5),
            (10, 1, 50, 60_000, 10.0),
        ] {
            let case = Case { regions, envoys, limit, window_ms, load };
            let cell = measure(&case, 1);
            assert!(!cell.failed && cell.over <= cell.over_bound && cell.less <= cell.less_bound, "{cell:?}");
        }
    }
}
