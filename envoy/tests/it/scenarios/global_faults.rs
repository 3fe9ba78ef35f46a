//! The database, the way to it, or a region fails under load: no request fails or waits, and once it is over every
//! region's row is what passed there, but for grants that were not used, and every other region has imported exactly that.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tokio::time::sleep;
use weir_envoy::load::{self, LoadPlan, LoadReport};
use weir_envoy::{Envoy, Proxy, ports, wait};

use super::common::{SOON, all_counted, assert_prompt, config, connected, get_as, passed_of, rule, with};
use super::global::{GlobalRegion, LARGE, SMALL, SharedDatabase, metric};

const CONNECTIONS: usize = 4;
const PER_SECOND: u64 = 250;
const SECONDS: u64 = 4;
const REQUESTS: u64 = PER_SECOND * SECONDS;
const CLIENTS: u64 = 10;
/// The limit of each client, which is reached in every scenario, so that both outcomes occur.
const LIMIT: u64 = 100;
/// Duration of each fault, and its start, in requests of a region's load.
const FAULT: u64 = PER_SECOND * 3 / 2;
const BEGIN: u64 = PER_SECOND * 4 / 5;
const BREAKER: &str = "weir_aggregator_breaker_state{store=\"global\"}";

fn limits() -> Value {
    config(&[rule("r", LIMIT)])
}

fn client(phase: &str, number: u64) -> String {
    format!("{phase}-{}", number % CLIENTS)
}

/// Two regions; the second reaches the database through a proxy.
struct World {
    database: SharedDatabase,
    proxy: Proxy,
    regions: [GlobalRegion; 2],
}

impl World {
    async fn start() -> World {
        let mut database = SharedDatabase::mariadb().await;
        let port = database.server().port();
        let proxy = Proxy::start(ports::local(port)).await.unwrap();
        let through = database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
        let a = GlobalRegion::start("a", LARGE, database.url(), &limits()).await;
        let b = GlobalRegion::start("b", SMALL, through, &limits()).await;
        World { database, proxy, regions: [a, b] }
    }

    fn load(&self, region: usize, phase: &'static str) -> LoadPlan {
        let addresses: Vec<_> = self.regions[region].envoys.iter().map(Envoy::address).collect();
        let sides = addresses.len() as u64;
        let plan = LoadPlan::of(addresses, CONNECTIONS, REQUESTS, move |number| {
            (usize::try_from(number / CLIENTS % sides).unwrap(), get_as(&client(phase, number)))
        });
        plan.rate(PER_SECOND as f64)
    }

    /// Checks that each region's row equals its total, that the total covers what passed there except for unused
    /// grants, and that the other region has imported it.
    async fn agrees(&self, phase: &str, loads: [LoadReport; 2]) {
        let began = Instant::now();
        for report in &loads {
            assert_eq!(report.count(200) + report.count(429), REQUESTS, "{phase}: {report:?}");
            // Queries may use their rules' timeouts, but no request waits for the database, whose calls may take ten
            // seconds.
            assert_prompt(report, Duration::ZERO);
        }
        let passed = loads.each_ref().map(|report| passed_of(report, CLIENTS, |n| Some(n % CLIENTS)).0);
        let here = loads.each_ref().map(|report| report.count(200));
        let mut seen = [[0; 3]; 2];
        let agreed = async || {
            let mut counted = true;
            for (place, region) in self.regions.iter().enumerate() {
                let rows = self.database.rows(region.name, format!("{phase}-").as_bytes()).await;
                let (mut own, mut others) = (Vec::new(), 0);
                for number in 0..CLIENTS {
                    // The minimum over the region's aggregators, because one may lag for a moment.
                    let held = region.hold(client(phase, number).as_bytes()).await;
                    own.push(held.iter().map(|held| held.0).min().unwrap_or_default());
                    others += held.iter().map(|held| held.1).min().unwrap_or_default();
                }
                seen[place] = [rows, own.iter().sum(), others];
                counted &= all_counted(&region.envoys, CONNECTIONS, &passed[place], &own).await;
            }
            let rows = seen.map(|[rows, ..]| rows);
            let imported = seen == [[rows[0], rows[0], rows[1]], [rows[1], rows[1], rows[0]]];
            imported && counted
        };
        if wait::until("all agree", SOON, agreed).await.is_err() {
            panic!("{phase}: {here:?} passed; rows, totals and imports are {seen:?}");
        }
        // While the regions are separated, each enforces the limit by itself, as precisely as several Envoys do.
        let most = CLIENTS * (LIMIT + LIMIT / 20);
        assert!(here.iter().all(|passed| *passed <= most), "{phase}: {here:?}");
        println!(
            "{phase}: {here:?} passed, agreed {:?} after the load; at most {:?} and {:?}",
            began.elapsed(),
            loads[0].latency(1.0),
            loads[1].latency(1.0)
        );
        for region in &self.regions {
            for (envoy, number) in region.envoys.iter().zip(0..) {
                let denied = async || envoy.send(get_as(&client(phase, number))).await.unwrap().status == 429;
                wait::until("the limit is used up everywhere", SOON, denied).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_fails_under_load() {
    let mut world = World::start().await;
    let (one, other) = (world.load(0, "wiped"), world.load(1, "wiped"));
    let sent = one.progress();
    let fault = async {
        for _ in 0..3 {
            sent.sends(BEGIN).await;
            world.database.run("TRUNCATE TABLE ratelimit_window_counts").await;
        }
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("wiped", [one.unwrap(), other.unwrap()]).await;

    let (one, other) = (world.load(0, "killed"), world.load(1, "killed"));
    let sent = one.progress();
    let fault = async {
        sent.sends(BEGIN).await;
        world.database.server().process().kill().unwrap();
        sent.sends(FAULT).await;
        world.database.server().restart().await.unwrap();
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("killed", [one.unwrap(), other.unwrap()]).await;

    let (one, other) = (world.load(0, "frozen"), world.load(1, "frozen"));
    let sent = one.progress();
    let fault = async {
        sent.sends(BEGIN).await;
        world.database.server().process().pause().await.unwrap();
        sent.sends(FAULT).await;
        world.database.server().process().resume().unwrap();
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("frozen", [one.unwrap(), other.unwrap()]).await;
    for region in &world.regions {
        region.is_sound().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_to_the_database_fails_under_load() {
    let world = World::start().await;
    let (one, other) = (world.load(0, "unresponsive"), world.load(1, "unresponsive"));
    let sent = one.progress();
    let fault = async {
        sent.sends(BEGIN).await;
        world.proxy.black_hole().await.unwrap();
        sent.sends(FAULT).await;
        world.proxy.forward().await.unwrap();
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("unresponsive", [one.unwrap(), other.unwrap()]).await;

    let (one, other) = (world.load(0, "refused"), world.load(1, "refused"));
    let cut_off = &world.regions[1].aggregators[0];
    let sent = one.progress();
    let fault = async {
        sent.sends(BEGIN).await;
        world.proxy.refuse().await.unwrap();
        world.proxy.cut();
        wait::until("the breaker opens", SOON, async || metric(cut_off, BREAKER).await == 2.0).await.unwrap();
        world.proxy.forward().await.unwrap();
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("refused", [one.unwrap(), other.unwrap()]).await;
    wait::until("the breaker closes", SOON, async || metric(cut_off, BREAKER).await == 0.0).await.unwrap();

    // Transactions of another client lock the same rows in the reverse order.
    let (one, other) = (world.load(0, "locked"), world.load(1, "locked"));
    let fault = async {
        let ended = Instant::now() + Duration::from_secs(SECONDS);
        let mut connection = MySqlConnection::connect(&world.database.url()).await.unwrap();
        while Instant::now() < ended {
            let mut transaction = connection.begin().await.unwrap();
            for number in (0..CLIENTS).rev() {
                let update = format!(
                    "UPDATE ratelimit_window_counts SET updated_at = updated_at + 1
                     WHERE identifier = '{}' AND expires_at > 0",
                    client("locked", number)
                );
                if transaction.execute(sqlx::raw_sql(AssertSqlSafe(update))).await.is_err() {
                    break;
                }
                sleep(Duration::from_millis(5)).await;
            }
            // If the server ended the transaction, there is nothing to commit.
            let _ = transaction.commit().await;
        }
    };
    let (one, other, ()) = tokio::join!(load::run(one), load::run(other), fault);
    world.agrees("locked", [one.unwrap(), other.unwrap()]).await;
    for region in &world.regions {
        region.is_sound().await;
    }
}

/// A region without a Redis loses its Envoy and its aggregator at once: only the published counts are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_recovers_from_the_database_alone() {
    const USED: u64 = 80;
    let database = SharedDatabase::mariadb().await;
    let costly = with(
        rule("r", LIMIT),
        json!({ "cost": { "request": { "header": "x-cost" }, "max": 1_000, "default": 1 } }),
    );
    let config = config(&[costly]);
    let mut a = GlobalRegion::start("a", SMALL, database.url(), &config).await;
    let b = GlobalRegion::start("b", SMALL, database.url(), &config).await;
    assert_eq!(a.sends(USED, || get_as("x")).await, USED);
    assert_eq!(b.sends(LIMIT, || get_as("y")).await, LIMIT);
    b.comes_to_hold(b"x", (0, USED)).await;
    a.comes_to_hold(b"y", (0, LIMIT)).await;
    a.envoys[0].process().kill().unwrap();
    a.aggregators[0].process().kill().unwrap();
    a.envoys[0].restart().await.unwrap();
    a.aggregators[0].restart().await.unwrap();
    connected(&a.envoys[0]).await;
    assert_eq!(a.sends(5, || get_as("y")).await, 0, "used up elsewhere");
    assert_eq!(a.sends(1, || get_as("x").header("x-cost", "21")).await, 0, "80 are used");
    let more = a.sends(LIMIT, || get_as("x")).await;
    println!("{USED} before and {more} after everything but the database had died");
    assert_eq!(more, LIMIT - USED);
    a.comes_to_hold(b"x", (LIMIT, 0)).await;
    b.comes_to_hold(b"x", (0, LIMIT)).await;
    assert_eq!(database.rows("a", b"x").await, LIMIT);
    assert_eq!(b.sends(5, || get_as("x")).await, 0);
    a.is_sound().await;
    b.is_sound().await;
}
