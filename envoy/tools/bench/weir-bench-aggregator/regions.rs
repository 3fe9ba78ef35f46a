//! Ten regions on one database: what they write, read and cost, at the figures that the design was made for.
//!
//! 24 000 active windows over all regions (and ten times as many), one in twenty of them used in two regions, one in ten
//! past half its limit, all growing. Each window is reported once in every ten seconds at the least, the hot ones every
//! second. The schedule is the real one, except in a smoke run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use weir_core::model::wire::{Count, MAX_FRAME_CELLS};
use weir_envoy::{Aggregator, AggregatorOptions, DatabaseServer, Redis, RedisOptions};

use crate::peer::{Peer, key, sequence};
use crate::stage::Cpu;
use crate::stats::metric;

pub const REGIONS: usize = 10;
/// Aggregators of all regions, three or four in each, on its Redis: as many instances as the design was made for.
pub const INSTANCES: usize = 33;
/// Active windows of all regions.
pub const WINDOWS: usize = 24_000;
/// One window in so many is used in two regions.
const SHARED_PART: usize = 20;
/// One window in so many is past half its limit.
const HOT_PART: usize = 10;
/// What is not hot is reported once in so many rounds of a second.
const ROUNDS: usize = 10;
const LIMIT: u64 = 1_000_000;
/// All have published everything at least once by then.
const SETTLING: Duration = Duration::from_secs(25);
const QUICK_SETTLING: Duration = Duration::from_secs(2);
const TICK_SECONDS: &str = "weir_ratelimit_global_tick_seconds";

pub const COLUMNS: [&str; 13] = [
    "hot windows",
    "packets/s",
    "imports/s",
    "all statements/s",
    "rows written/s",
    "upserted rows/s, by MariaDB",
    "cells received/s",
    "index rows read/s, by MariaDB",
    "packet ms, mean",
    "import ms, mean",
    "slowest call below ms",
    "database CPU %",
    "CPU % of each aggregator",
];

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub time: Duration,
    /// An interval each 300 ms.
    pub quick: bool,
}

/// Each region has a Redis if it has several aggregators. Its windows are spread evenly over them.
pub async fn measure(scale: usize, instances: usize, effort: Effort) -> Result<Vec<f64>> {
    let mut server = DatabaseServer::mariadb().await?;
    let mut database = MySqlConnection::connect(&server.url("mysql")).await?;
    sqlx::query("CREATE DATABASE weir").execute(&mut database).await?;
    let (mut aggregators, mut stores) = (Vec::new(), Vec::new());
    let mut streams = JoinSet::new();
    for region in 0..REGIONS {
        let of_region = instances / REGIONS + usize::from(region < instances % REGIONS);
        let mut environment = vec![("WEIR_DATABASE_URL".to_owned(), server.url("weir"))];
        if of_region > 1 {
            let redis = Redis::start(RedisOptions::default()).await?;
            environment.push(("WEIR_REDIS_URL".to_owned(), redis.url()));
            stores.push(redis);
        }
        for part in 0..of_region {
            let aggregator = start(region, environment.clone(), effort.quick).await?;
            let peer = Peer::join(aggregator.grpc_port(), false).await?;
            let windows =
                windows(region, scale).into_iter().filter(|window| window / HOT_PART % of_region == part);
            streams.spawn(report(peer, windows.collect()));
            aggregators.push(aggregator);
        }
    }
    sleep(if effort.quick { QUICK_SETTLING } else { SETTLING }).await;

    let began = Instant::now();
    let (before, cpu) =
        (Figures::of(&mut database, &aggregators).await?, cpu(&mut server, &mut aggregators)?);
    sleep(effort.time).await;
    let after = Figures::of(&mut database, &aggregators).await?;
    let cpu = self::cpu(&mut server, &mut aggregators)?.since(cpu);
    let seconds = began.elapsed().as_secs_f64();
    if let Some(Ok(Err(error))) = streams.try_join_next() {
        return Err(error.context("a stream ended"));
    }
    streams.abort_all();

    let per_second = |figure: fn(&Figures) -> f64| (figure(&after) - figure(&before)) / seconds;
    let mean_ms = |seconds: fn(&Figures) -> f64, times: fn(&Figures) -> f64| {
        (seconds(&after) - seconds(&before)) / (times(&after) - times(&before)) * 1e3
    };
    Ok(vec![
        (scale * WINDOWS / HOT_PART) as f64,
        per_second(|figures| figures.packets),
        per_second(|figures| figures.imports),
        per_second(|figures| figures.statements),
        per_second(|figures| figures.rows_written),
        per_second(|figures| figures.rows_upserted),
        per_second(|figures| figures.cells_received),
        per_second(|figures| figures.rows_read),
        mean_ms(|figures| figures.exchange_seconds, |figures| figures.packets),
        mean_ms(|figures| figures.import_seconds, |figures| figures.imports),
        slowest_ms(&before.ticks, &after.ticks),
        cpu.store.as_secs_f64() / seconds * 100.0,
        cpu.aggregators.as_secs_f64() / seconds * 100.0 / instances as f64,
    ])
}

/// An aggregator of the `region`th region, with the tables of its database.
pub async fn start(region: usize, environment: Vec<(String, String)>, quick: bool) -> Result<Aggregator> {
    let mut arguments = vec!["--migrate".to_owned()];
    arguments.extend(quick.then(|| "--test-schedule".to_owned()));
    let options = AggregatorOptions {
        region: format!("region-{region}"),
        arguments,
        environment,
        ..AggregatorOptions::default()
    };
    Aggregator::start(options).await
}

/// The windows that a region uses: its own part, and of each part that begins with shared ones the next region's.
fn windows(region: usize, scale: usize) -> Vec<usize> {
    let (part, shared) = (scale * WINDOWS / REGIONS, scale * WINDOWS / REGIONS / SHARED_PART);
    let next = (region + 1) % REGIONS * part;
    (region * part..(region + 1) * part).chain(next..next + shared).collect()
}

/// The `round`th count of a window; a hot one has reached its half from the start and not all at the end.
fn own(window: usize, round: u64) -> u64 {
    if is_hot(window) { LIMIT / 2 + round } else { 1 + round }
}

fn is_hot(window: usize) -> bool {
    window.is_multiple_of(HOT_PART)
}

async fn report(mut peer: Peer, windows: Vec<usize>) -> Result<()> {
    let mut rounds = interval(Duration::from_secs(1));
    let mut id = 0;
    for round in 0_u64.. {
        rounds.tick().await;
        let mine = |window: &&usize| is_hot(**window) || **window % ROUNDS == round as usize % ROUNDS;
        let counts: Vec<Count> = windows
            .iter()
            .filter(mine)
            .map(|window| Count {
                key: key("wind", *window),
                sequence: sequence(),
                own: own(*window, round),
                limit: LIMIT,
                ..Count::default()
            })
            .collect();
        for frame in counts.chunks(MAX_FRAME_CELLS) {
            peer.report(id, frame.to_vec()).await?;
            peer.next_with(|frame| frame.ack).await?;
            id += 1;
        }
    }
    Ok(())
}

/// Counters of the database and of the aggregators.
#[derive(Debug, Default)]
struct Figures {
    statements: f64,
    rows_upserted: f64,
    rows_read: f64,
    packets: f64,
    imports: f64,
    rows_written: f64,
    cells_received: f64,
    exchange_seconds: f64,
    import_seconds: f64,
    /// For each upper bound in seconds, the calls that took no longer.
    ticks: Vec<(f64, f64)>,
}

impl Figures {
    async fn of(database: &mut MySqlConnection, aggregators: &[Aggregator]) -> Result<Self> {
        let mut figures = Self::default();
        for aggregator in aggregators {
            let text = String::from_utf8_lossy(&aggregator.admin_get("/metrics").await?.body).into_owned();
            let (exchange, import) = ("op=\"exchange\"", "op=\"import\"");
            figures.packets += metric(&text, &format!("{TICK_SECONDS}_count"), exchange);
            figures.imports += metric(&text, &format!("{TICK_SECONDS}_count"), import);
            figures.exchange_seconds += metric(&text, &format!("{TICK_SECONDS}_sum"), exchange);
            figures.import_seconds += metric(&text, &format!("{TICK_SECONDS}_sum"), import);
            figures.rows_written += metric(&text, "weir_ratelimit_global_writes_total", "");
            figures.cells_received += metric(&text, "weir_ratelimit_global_sync_rows_applied_total", "");
            add_ticks(&text, &mut figures.ticks);
        }
        figures.statements = status(database, "Queries").await?;
        // An upsert counts as an insert, also if it updates.
        figures.rows_upserted = status(database, "Handler_write").await?;
        figures.rows_read = status(database, "Handler_read_next").await?;
        Ok(figures)
    }
}

/// One of the database's counters.
async fn status(database: &mut MySqlConnection, name: &str) -> Result<f64> {
    let query = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let (_, value): (String, String) =
        sqlx::query_as(AssertSqlSafe(query)).fetch_one(database).await.with_context(|| name.to_owned())?;
    Ok(value.parse()?)
}

fn add_ticks(text: &str, ticks: &mut Vec<(f64, f64)>) {
    for line in text.lines().filter(|line| line.starts_with(&format!("{TICK_SECONDS}_bucket"))) {
        let bound = line.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"'));
        let bound = bound.and_then(|(bound, _)| bound.replace("+Inf", "inf").parse::<f64>().ok());
        let times = line.rsplit_once(' ').and_then(|(_, times)| times.parse::<f64>().ok());
        let (Some(bound), Some(times)) = (bound, times) else { continue };
        match ticks.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += times,
            None => ticks.push((bound, times)),
        }
    }
    ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
}

/// The least bound, in milliseconds, below which all ticks between two readings were.
fn slowest_ms(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let known =
        |bound: f64| before.iter().find(|(other, _)| *other == bound).map_or(0.0, |(_, times)| *times);
    let grown: Vec<_> = after.iter().map(|(bound, times)| (*bound, times - known(*bound))).collect();
    let all = grown.last().map_or(0.0, |(_, times)| *times);
    grown.iter().find(|(_, times)| *times >= all).map_or(f64::NAN, |(bound, _)| bound * 1e3)
}

/// Processor time of the database, and of all aggregators.
fn cpu(server: &mut DatabaseServer, aggregators: &mut [Aggregator]) -> Result<Cpu> {
    let mut cpu = Cpu { store: server.process().cpu_time()?, ..Cpu::default() };
    for aggregator in aggregators {
        cpu.aggregators += aggregator.process().cpu_time()?;
    }
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_window_in_twenty_is_used_in_two_regions() {
        let mut uses = vec![0; WINDOWS];
        for region in 0..REGIONS {
            windows(region, 1).into_iter().for_each(|window| uses[window] += 1);
        }
        assert!(uses.iter().all(|uses| (1..=2).contains(uses)));
        assert_eq!(uses.iter().filter(|uses| **uses == 2).count(), WINDOWS / SHARED_PART);
    }

    #[test]
    fn the_slowest_tick_is_read_from_the_histograms_difference() {
        let text = |fast, slow| {
            format!(
                "{TICK_SECONDS}_bucket{{le=\"0.001\",op=\"import\"}} {fast}\n\
                 {TICK_SECONDS}_bucket{{le=\"0.002\",op=\"import\"}} {slow}\n\
                 {TICK_SECONDS}_bucket{{le=\"+Inf\",op=\"import\"}} {slow}\n"
            )
        };
        let read = |text: String| {
            let mut ticks = Vec::new();
            add_ticks(&text, &mut ticks);
            add_ticks(&text, &mut ticks);
            ticks
        };
        let (first, second, third) = (read(text(1, 3)), read(text(2, 4)), read(text(2, 5)));
        assert_eq!(first, [(0.001, 2.0), (0.002, 6.0), (f64::INFINITY, 6.0)]);
        assert_eq!(slowest_ms(&first, &second), 1.0);
        assert_eq!(slowest_ms(&second, &third), 2.0);
        assert!(slowest_ms(&[], &[]).is_nan());
    }
}
