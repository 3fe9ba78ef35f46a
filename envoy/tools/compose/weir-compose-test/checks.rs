//! What must hold in the compose project: limits, through every fault, and counts that are right to the last request.
//!
//! Every check has clients of its own, whose limit is [`LIMIT`]. A fault begins once all counts have been reported, so that the
//! counts after it can be compared exactly. How much is lost with a part that ends amid requests is tested in `envoy/tests`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::try_join;
use weir_core::limiter::SLACK_PART;
use weir_envoy::wait;

use crate::compose::Compose;
use crate::region::{LIMIT, Region};

/// The most that a region may admit when bursts reach the limit: 4 % too much, by `examples/simulator/ACCURACY.md`.
const REGIONAL_MOST: u64 = LIMIT + LIMIT * 4 / 100;
/// Less than half a limit, so that no region publishes it.
const SOME: u64 = 150;
/// More than half a limit, so that regions publish it.
const MUCH: u64 = 600;
/// This many denials in a row show that a limit is used up.
const FEW: u64 = 50;
const SOON: Duration = Duration::from_secs(20);
const BOTH: &[usize] = &[0, 1];

/// The two regions of the file.
pub struct Regions {
    pub eu: Region,
    pub us: Region,
}

/// A part of a region that is to fail.
#[derive(Clone, Copy)]
pub struct Part {
    pub service: &'static str,
    /// The Envoys that clients can use meanwhile.
    pub living: &'static [usize],
}

pub const PARTS: [Part; 3] = [
    Part { service: "envoy-1", living: &[1] },
    Part { service: "aggregator-1", living: BOTH },
    Part { service: "redis", living: BOTH },
];

/// A command that makes a part fail, and the one that undoes it.
#[derive(Clone, Copy)]
pub struct Fault {
    pub verb: &'static str,
    pub undo: &'static str,
}

pub const PAUSE: Fault = Fault { verb: "pause", undo: "unpause" };
pub const KILL: Fault = Fault { verb: "kill", undo: "start" };

/// Twice the limit, over both Envoys of a region: the limit passes, and then nothing.
pub async fn region_holds(region: &Region, key: &str) -> Result<()> {
    fills(region, key).await?;
    used_up(region, key).await
}

/// What one region used up is used up in the other.
pub async fn regions_share(regions: &Regions) -> Result<()> {
    let Regions { eu, us } = regions;
    try_join!(region_holds(eu, "gold-eu"), region_holds(us, "gold-us"))?;
    try_join!(us.receives("gold-eu", eu), eu.receives("gold-us", us))?;
    try_join!(used_up(us, "gold-eu"), used_up(eu, "gold-us")).map(drop)
}

/// A region that is cut off from the others goes on; once it is connected again, all regions have all counts.
pub async fn region_cut_off(compose: &Compose, regions: &Regions) -> Result<()> {
    let key = "gold-cut-off";
    let Regions { eu, us } = regions;
    let before = eu.database_failures().await?;
    for part in ["aggregator-1", "aggregator-2"] {
        compose.network("disconnect", "world", &eu.service(part)).await?;
    }
    try_join!(passes(eu, key, MUCH, BOTH), passes(us, key, MUCH, BOTH))?;
    eu.misses_the_database(&before).await?;
    ensure!(us.has_received_nothing(key).await?, "us has counts of eu, which is cut off");
    for part in ["aggregator-1", "aggregator-2"] {
        compose.network("connect", "world", &eu.service(part)).await?;
    }
    try_join!(us.receives(key, eu), eu.receives(key, us))?;
    try_join!(used_up(eu, key), used_up(us, key)).map(drop)
}

/// A part of a region fails and returns: clients are served all the time, and their requests are counted to the last one.
pub async fn part_fails(compose: &Compose, region: &Region, part: Part, fault: Fault) -> Result<()> {
    let service = region.service(part.service);
    let key = format!("gold-{}-{service}", fault.verb);
    passes(region, &key, SOME, BOTH).await?;
    region.agrees(&key).await?;
    region.disturb(&key);
    compose.container(fault.verb, &service).await?;
    passes(region, &key, SOME, part.living).await?;
    compose.container(fault.undo, &service).await?;
    compose.healthy(&service).await?;
    region.settled(BOTH).await?;
    region.uses_redis().await?;
    passes(region, &key, SOME, BOTH).await?;
    region.agrees(&key).await?;
    fills(region, &key).await
}

/// The database fails and returns: regions go on, and receive each other's counts afterwards.
pub async fn database_fails(compose: &Compose, regions: &Regions, fault: Fault) -> Result<()> {
    let key = format!("gold-{}-mysql", fault.verb);
    let Regions { eu, us } = regions;
    let before = try_join!(eu.database_failures(), us.database_failures())?;
    compose.container(fault.verb, "mysql").await?;
    try_join!(passes(eu, &key, MUCH, BOTH), passes(us, &key, MUCH, BOTH))?;
    try_join!(eu.agrees(&key), us.agrees(&key))?;
    try_join!(eu.misses_the_database(&before.0), us.misses_the_database(&before.1))?;
    compose.container(fault.undo, "mysql").await?;
    compose.healthy("mysql").await?;
    try_join!(us.receives(&key, eu), eu.receives(&key, us))?;
    try_join!(used_up(eu, &key), used_up(us, &key)).map(drop)
}

/// The Envoys of a region are replaced one after the other, while clients use the other one.
pub async fn rolling_update(compose: &Compose, region: &Region) -> Result<()> {
    let key = "gold-rolling";
    passes(region, key, SOME, BOTH).await?;
    for (leaving, staying) in [(0, [1]), (1, [0])] {
        region.agrees(key).await?;
        let service = region.service(&format!("envoy-{}", leaving + 1));
        try_join!(compose.recreate(&service), passes(region, key, SOME, &staying))?;
        region.settled(&[leaving]).await?;
        passes(region, key, SOME, &[leaving]).await?;
    }
    fills(region, key).await
}

/// After all faults each region has the exact count of what passed in it, and what the other region published.
pub async fn counts_are_right(regions: &Regions) -> Result<()> {
    let Regions { eu, us } = regions;
    for (here, there) in [(eu, us), (us, eu)] {
        for key in here.keys() {
            here.agrees(&key).await?;
            if here.passed(&key) > LIMIT / 2 {
                there.receives(&key, here).await?;
            }
        }
    }
    Ok(())
}

/// What is left of a limit passes, and no more than that.
///
/// If the region did not answer a query in time, an Envoy decided by its own counts, as the rule states. That shows nothing about
/// the limit of the region, so the check is repeated with another client.
async fn fills(region: &Region, key: &str) -> Result<()> {
    const ATTEMPTS: usize = 4;
    let mut key = key.to_owned();
    for _ in 0..ATTEMPTS {
        let before = region.unanswered().await?;
        region.send(&key, 2 * LIMIT, BOTH).await?;
        // A query that was refused for a moment leaves a remainder to later requests.
        region.send(&key, FEW, BOTH).await?;
        let passed = region.passed(&key);
        let unanswered = region.unanswered().await?.saturating_sub(before);
        // What a lost Envoy had leased counts as spent.
        let held = region.agrees(&key).await?;
        if unanswered == 0 || passed <= REGIONAL_MOST {
            ensure!(
                passed <= REGIONAL_MOST && held >= LIMIT,
                "{}: {passed} of a limit of {LIMIT} passed for {key}, and {held} are counted",
                region.name
            );
            return Ok(());
        }
        println!("   {}: {passed} passed for {key}, with {unanswered} queries unanswered", region.name);
        key.push_str("-again");
    }
    bail!("{}: this machine is too slow to judge how much passes a limit", region.name)
}

/// All of these requests pass, as the limit is far.
async fn passes(region: &Region, key: &str, requests: u64, envoys: &[usize]) -> Result<()> {
    let passed = region.send(key, requests, envoys).await.with_context(|| format!("the client {key}"))?;
    ensure!(
        passed == requests,
        "{}: {passed} of {requests} passed for {key}, whose limit is far",
        region.name
    );
    Ok(())
}

/// Nothing passes any more. Envoys receive counts a moment after their aggregators, and may spend their slack until then.
async fn used_up(region: &Region, key: &str) -> Result<()> {
    let before = region.passed(key);
    let denied = async || region.send(key, FEW, BOTH).await.is_ok_and(|passed| passed == 0);
    let refused = wait::until(&format!("{} denies {key}", region.name), SOON, denied).await;
    let meanwhile = region.passed(key) - before;
    if meanwhile > 0 {
        region.disturb(key);
    }
    let most = LIMIT.saturating_sub(before) / SLACK_PART;
    ensure!(
        refused.is_ok() && meanwhile <= most,
        "{}: {meanwhile} passed for {key}, which has used up its limit",
        region.name
    );
    Ok(())
}
