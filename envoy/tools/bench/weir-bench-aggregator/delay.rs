//! From one region to another: how long it takes until a key that is used up in the one is pushed to an Envoy of the other, which
//! denies it from then on. The regions share a database that is at a distance from both, on the real schedule.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::{Connection, MySqlConnection};
use tokio::time::{interval, sleep};
use weir_core::model::wire::Count;
use weir_envoy::{DatabaseServer, Proxy, ports};

use crate::peer::{PATIENCE, Peer, key, sequence};
use crate::regions::start;
use crate::stats::Times;

/// From a region to the database.
const ONE_WAY: Duration = Duration::from_millis(50);
const LIMIT: u64 = 200;
const KEYS: usize = 200;
const QUICK_KEYS: usize = 5;
/// Keys meet the schedule at all of its moments: this is no part of its second.
const PAUSE: Duration = Duration::from_millis(217);
/// Both regions have exchanged packets by then.
const SETTLING: Duration = Duration::from_secs(3);

pub const COLUMNS: [&str; 4] = ["keys", "p50 ms", "p99 ms", "max ms"];

/// When each key was pushed, by its number.
type Pushed = Mutex<Vec<Option<Instant>>>;

pub async fn measure(quick: bool) -> Result<Vec<f64>> {
    let keys = if quick { QUICK_KEYS } else { KEYS };
    let server = DatabaseServer::mariadb().await?;
    let mut database = MySqlConnection::connect(&server.url("mysql")).await?;
    sqlx::query("CREATE DATABASE weir").execute(&mut database).await?;
    let way = Proxy::start_distant(ports::local(server.port()), ONE_WAY).await?;
    let url = server.url("weir").replace(&format!(":{}/", server.port()), &format!(":{}/", way.port()));
    let environment = vec![("WEIR_DATABASE_URL".to_owned(), url)];
    let regions = [start(0, environment.clone(), quick).await?, start(1, environment, quick).await?];
    let reporter = Peer::join(regions[0].grpc_port(), false).await?;
    let follower = Peer::join(regions[1].grpc_port(), true).await?;
    let pushed = Arc::new(Mutex::new(vec![None; keys]));
    let listener = tokio::spawn(listen(follower, pushed.clone()));
    sleep(SETTLING).await;

    let (mut reported, mut ticks) = (Vec::new(), interval(PAUSE));
    for number in 0..keys {
        ticks.tick().await;
        reported.push(Instant::now());
        let used_up = Count {
            key: key("used", number),
            sequence: sequence(),
            own: LIMIT,
            limit: LIMIT,
            ..Count::default()
        };
        reporter.report(number as u64, vec![used_up]).await?;
    }
    let patient_until = Instant::now() + PATIENCE;
    while lock(&pushed).contains(&None) {
        ensure!(Instant::now() < patient_until, "a key was never pushed");
        sleep(Duration::from_millis(10)).await;
    }
    listener.abort();
    let mut times = Times::default();
    for (pushed, reported) in lock(&pushed).iter().flatten().zip(reported) {
        times.push(*pushed - reported);
    }
    Ok(vec![keys as f64, times.percentile_ms(0.5), times.percentile_ms(0.99), times.percentile_ms(1.0)])
}

/// Notes when each key is first pushed as used up.
async fn listen(mut follower: Peer, pushed: Arc<Pushed>) -> Result<()> {
    let numbers = 0..lock(&pushed).len();
    let keys: Vec<_> = numbers.map(|number| key("used", number)).collect();
    loop {
        let Some(push) = follower.next().await?.push else { continue };
        for snapshot in push.snapshots.iter().filter(|snapshot| snapshot.global_others >= LIMIT) {
            if let Some(number) = keys.iter().position(|key| *key == snapshot.key) {
                lock(&pushed)[number].get_or_insert_with(Instant::now);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
