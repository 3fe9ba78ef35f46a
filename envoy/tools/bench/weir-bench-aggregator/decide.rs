//! Decisions: how many an aggregator makes a second through each of its APIs, and how long one takes.
//!
//! Every client sends a request, waits for the response and sends the next, so with many clients a time includes the wait behind the others.
//! The clients share the processors with the aggregator; its processor time shows what it could do with a core of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::api::{Api, Asker, Scene};
use crate::stats::Times;

const WARM_UP: Duration = Duration::from_secs(1);
/// Number of identifiers, if there are many.
const MANY: usize = 10_000;

/// The clients and their identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crowd {
    pub api: Api,
    /// One identifier, or many in turn.
    pub hot: bool,
    pub clients: usize,
}

pub const COLUMNS: [&str; 7] = [
    "decisions/s here",
    "p50 ms",
    "p99 ms",
    "allowed %",
    "aggregator µs/decision",
    "decisions/s and core",
    "store µs/decision",
];

impl Crowd {
    /// One client and many, on one key and on many, at each API.
    pub fn all() -> impl Iterator<Item = Crowd> {
        Api::ALL.into_iter().flat_map(|api| {
            [(true, 1), (true, 64), (false, 1), (false, 64)].into_iter().map(move |(hot, clients)| Crowd {
                api,
                hot,
                clients,
            })
        })
    }

    pub fn title(self) -> String {
        let keys = if self.hot { "one key" } else { "10 000 keys" };
        let clients =
            if self.clients == 1 { "1 client".to_owned() } else { format!("{} clients", self.clients) };
        format!("{}, {keys}, {clients}", self.api.title())
    }
}

pub async fn measure(crowd: Crowd, time: Duration) -> Result<Vec<f64>> {
    let mut scene = Scene::start(crowd.api).await?;
    let keys = if crowd.hot { 1 } else { MANY };
    let began = Instant::now();
    let (from, until) = (began + WARM_UP, began + WARM_UP + time);
    let mut clients = JoinSet::new();
    for client in 0..crowd.clients {
        let sender = scene.connect(client).await?;
        // Clients begin at different keys.
        let first = client * (keys / crowd.clients).max(1);
        clients.spawn(run_client(sender, first, keys, (from, until)));
    }
    sleep(from.saturating_duration_since(Instant::now())).await;
    let before = scene.cpu()?;
    sleep(until.saturating_duration_since(Instant::now())).await;
    let cpu = scene.cpu()?.since(before);
    let mut all = Measured::default();
    while let Some(client) = clients.join_next().await {
        let measured = client?.context("a client failed")?;
        all.times.extend(measured.times);
        all.allowed += measured.allowed;
    }
    let decisions = all.times.len() as f64;
    let aggregator = cpu.aggregators.as_secs_f64();
    let store = if scene.has_store() { cpu.store.as_secs_f64() / decisions * 1e6 } else { f64::NAN };
    Ok(vec![
        decisions / time.as_secs_f64(),
        all.times.percentile_ms(0.5),
        all.times.percentile_ms(0.99),
        all.allowed as f64 / decisions * 100.0,
        aggregator / decisions * 1e6,
        decisions / aggregator,
        store,
    ])
}

/// The times and results of clients.
#[derive(Default)]
struct Measured {
    times: Times,
    allowed: usize,
}

/// Sends requests for one key after the other; only those that begin and end within the time count.
async fn run_client(
    mut sender: Asker,
    first: usize,
    keys: usize,
    (from, until): (Instant, Instant),
) -> Result<Measured> {
    let mut measured = Measured::default();
    for number in first.. {
        let began = Instant::now();
        if began >= until {
            break;
        }
        let allowed = sender.decide(number % keys).await?;
        let ended = Instant::now();
        if began >= from && ended <= until {
            measured.times.push(ended - began);
            measured.allowed += usize::from(allowed);
        }
    }
    Ok(measured)
}
