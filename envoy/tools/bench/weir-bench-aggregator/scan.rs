//! The core alone: how long it takes to find everything that is due for other regions, and what a cell weighs.
//!
//! Each size is measured in a process of its own, as memory that was given back may stay with the process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use weir_core::model::key::{HashKey, NodeId};
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::model::wire::{Count, MAX_FRAME_CELLS};
use weir_core::region::{Due, Region, RegionLimits};
use weir_core::replication::global::packet::MAX_PACKET_ROWS;

use crate::median::median;
use crate::peer::{HOUR_MS, key};

const NOW: UnixMs = UnixMs(1_700_000_000_000);
const LIMIT: u64 = 1_000;
const NODE: NodeId = NodeId([7; 16]);
const TIMES: u64 = 5;

pub const COLUMNS: [&str; 6] = [
    "10 % due, ms",
    "of these the longest step, CPU ms",
    "all due, ms",
    "the longest step of these, CPU ms",
    "resident bytes per cell",
    "µs/count reported",
];

/// Measures in a process of its own.
pub fn measure(cells: usize) -> Result<Vec<f64>> {
    let program = std::env::current_exe()?;
    let output = Command::new(program)
        .args(["--scan-here", &cells.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("measuring in a process of its own")?;
    ensure!(output.status.success(), "the measuring process ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().map(|value| Ok(value.parse()?)).collect()
}

/// Measures here, and prints the values.
pub fn measure_here(cells: usize) -> Result<()> {
    let before = resident_bytes()?;
    let limits = RegionLimits { max_keys: cells, ..RegionLimits::default() };
    let mut region = Region::new(limits, HashKey(1, 2));
    region.nodes.received_from(NODE, MonoMs(NOW.0));
    region.set_regions(1);
    // Nothing is due yet.
    report(&mut region, cells, 1, 1);
    let bytes = (resident_bytes()? - before) as f64 / cells as f64;
    let (mut some, mut all) = (Vec::new(), Vec::new());
    let (mut some_steps, mut all_steps) = (Vec::new(), Vec::new());
    let mut reported = Vec::new();
    for time in 0..TIMES {
        report(&mut region, cells, LIMIT / 2 + 2 * time, 10);
        let (took, step) = scan(&mut region, cells.div_ceil(10))?;
        some.push(took);
        some_steps.push(step);
        let took = report(&mut region, cells, LIMIT / 2 + 2 * time + 1, 1);
        reported.push(took.as_secs_f64() / cells as f64 * 1e6);
        let (took, step) = scan(&mut region, cells)?;
        all.push(took);
        all_steps.push(step);
    }
    let values = [median(some), median(some_steps), median(all), median(all_steps), bytes, median(reported)];
    println!("{}", values.map(|value| value.to_string()).join(" "));
    Ok(())
}

/// Raises one key in `every`; returns how long the region took for it.
fn report(region: &mut Region, cells: usize, own: u64, every: usize) -> Duration {
    let mut took = Duration::ZERO;
    let numbers: Vec<_> = (0..cells).step_by(every).collect();
    for frame in numbers.chunks(MAX_FRAME_CELLS) {
        let count = |number: &usize| Count {
            key: key("scan", *number),
            sequence: NOW.0 / HOUR_MS,
            own,
            limit: LIMIT,
            ..Count::default()
        };
        let counts: Vec<_> = frame.iter().map(count).collect();
        let began = Instant::now();
        region.report(NODE, &counts, NOW);
        took += began.elapsed();
    }
    took
}

/// Takes all cells that are due, a packet at a time, and marks them as published; returns how many milliseconds the taking took, and the processor time
/// of its longest step. The lock is held for a packet; waits for a processor are the machine's.
fn scan(region: &mut Region, expected: usize) -> Result<(f64, f64)> {
    let (mut taken, mut took, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    loop {
        let (began, worked) = (Instant::now(), cpu_time()?);
        let rows = region.next_rows(Due::AtInterval, MAX_PACKET_ROWS, NOW);
        took += began.elapsed();
        longest = longest.max(cpu_time()?.saturating_sub(worked));
        taken += rows.len();
        region.published(&rows, NOW);
        if !region.has_rows(Due::AtInterval) {
            break;
        }
    }
    ensure!(taken == expected, "{taken} cells were due, not {expected}");
    Ok((took.as_secs_f64() * 1e3, longest.as_secs_f64() * 1e3))
}

/// Processor time of this thread so far.
fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::ThreadCPUTime).try_into()?)
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
