//! Processes of one region under traffic at twice their limit.

use super::harness::*;
use crate::limiter::Decision;
use crate::model::window::{Position, Used};
use std::collections::BTreeMap;
use std::println;

const WINDOW: u64 = 10_000;

#[derive(Debug)]
struct Case {
    processes: usize,
    workers: usize,
    limit: u64,
    latency: (u64, u64),
}

#[derive(Debug, Default)]
struct Figures {
    passed: BTreeMap<u64, u64>,
    exact: BTreeMap<u64, u64>,
    queries: u64,
}

/// Sends random traffic at twice the limit for some windows. Returns the admissions in each, and those of one exact limiter.
fn run(case: &Case) -> Figures {
    let mut world = World::connected(case.processes, case.workers);
    world.latency = case.latency;
    let key = key("k", WINDOW);
    let mut figures = Figures::default();
    world.run(WINDOW - world.unix().0 % WINDOW);
    let end = world.now + 4 * WINDOW;
    let mut exact = BTreeMap::<u64, u64>::new();
    let mut waiting = BTreeMap::new();
    world.queries = 0;
    while world.now < end {
        let requests = 2 * case.limit;
        // On average `requests` in a window.
        let due = (0..requests.div_ceil(WINDOW))
            .filter(|_| world.random.below(WINDOW.max(requests)) < requests)
            .count();
        for _ in 0..due {
            let at = Position::at(world.unix(), WINDOW);
            let count = |cells: &BTreeMap<u64, u64>, sequence| cells.get(&sequence).copied().unwrap_or(0);
            let used = Used::Average {
                current: count(&exact, at.sequence),
                previous: count(&exact, at.sequence - 1),
            };
            if used.admits(&at, 1, case.limit) {
                *exact.entry(at.sequence).or_default() += 1;
            }
            let process = world.random.below(case.processes as u64) as usize;
            let worker = world.random.below(case.workers as u64) as usize;
            let (id, outcome) = world.request(process, worker, &[check(&key, case.limit, 1)]);
            match outcome.decision {
                Decision::Allow(_) => *figures.passed.entry(at.sequence).or_default() += 1,
                Decision::Wait => {
                    waiting.insert(id, at.sequence);
                }
                Decision::Deny(_) => {}
            }
        }
        world.run(1);
        for (id, (_, outcome)) in std::mem::take(&mut world.resolved) {
            let sequence = waiting.remove(&id).unwrap();
            if allowed(&outcome) {
                *figures.passed.entry(sequence).or_default() += 1;
            }
        }
    }
    figures.queries = world.queries;
    figures.exact = exact;
    figures
}

/// Prints the figures. Returns whether each window is within 1 % below and 5 % above one exact limiter.
fn is_accurate(case: &Case, figures: &Figures) -> bool {
    let passed: u64 = figures.passed.values().sum();
    let exact: u64 = figures.exact.values().sum();
    let error = (passed as f64 / exact as f64 - 1.0) * 100.0;
    let queries = figures.queries as f64 / passed as f64;
    println!("{case:?}: passed {passed}, exact {exact} ({error:+.2} %), {queries:.3} queries each");
    figures.exact.iter().all(|(sequence, exact)| {
        let passed = figures.passed.get(sequence).copied().unwrap_or(0) as f64;
        (*exact as f64 * 0.99 - 1.0..=*exact as f64 * 1.05 + 1.0).contains(&passed)
    })
}

#[test]
fn processes_of_a_region_share_a_limit_within_the_error_bounds() {
    for processes in [2, 5] {
        for limit in [10, 100, 1_000] {
            for latency in [(0, 0), (0, 20)] {
                for workers in [1, 3] {
                    let case = Case { processes, workers, limit, latency };
                    let figures = run(&case);
                    assert!(is_accurate(&case, &figures), "{case:?}: {figures:?}");
                    let rare = limit < 1_000 || figures.queries <= limit / 10;
                    assert!(rare, "{case:?}: {} queries", figures.queries);
                }
            }
        }
    }
}
