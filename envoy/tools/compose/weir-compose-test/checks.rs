//! What must hold in the project: limits, through every fault, and a book that is right to the last request.
//!
//! Every check has clients of its own, whose limit is [`LIMIT`]. Faults come where all is told, so that what is known after
//! them can be compared exactly; that something is lost with a part that dies amid requests, and how much at most, is the
//! business of the end-to-end tests (`envoy/tests`).

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::try_join;
use weir_core::limiter::SLACK_PART;
use weir_envoy::wait;

use crate::compose::Compose;
use crate::region::{LIMIT, Region};

/// What a region may let pass too much where bursts meet the limit: 4 %, by `examples/simulator/ACCURACY.md`.
const REGIONAL_MOST: u64 = LIMIT + LIMIT * 4 / 100;
/// Less than half a limit, so that no region speaks of it.
const SOME: u64 = 150;
/// More than half a limit, so that regions speak of it.
const MUCH: u64 = 600;
/// So many denials in a row say that a limit is used up.
const FEW: u64 = 50;
const SOON: Duration = Duration::from_secs(20);
const BOTH: &[usize] = &[0, 1];

/// The two regions of the file.
pub struct Regions {
    pub eu: Region,
    pub us: Region,
}

/// A part of a region to which something happens.
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

/// What is done to a part, and what undoes it.
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
    try_join!(us.hears("gold-eu", eu), eu.hears("gold-us", us))?;
    try_join!(used_up(us, "gold-eu"), used_up(eu, "gold-us")).map(drop)
}

/// A region without the other ones goes on; once it is connected again all of them know all.
pub async fn region_cut_off(compose: &Compose, regions: &Regions) -> Result<()> {
    let key = "gold-cut-off";
    let Regions { eu, us } = regions;
    let before = eu.database_failures().await?;
    for part in ["aggregator-1", "aggregator-2"] {
        compose.network("disconnect", "world", &eu.service(part)).await?;
    }
    try_join!(passes(eu, key, MUCH, BOTH), passes(us, key, MUCH, BOTH))?;
    eu.misses_the_database(&before).await?;
    ensure!(us.has_heard_nothing(key).await?, "us hears of eu, which is cut off");
    for part in ["aggregator-1", "aggregator-2"] {
        compose.network("connect", "world", &eu.service(part)).await?;
    }
    try_join!(us.hears(key, eu), eu.hears(key, us))?;
    try_join!(used_up(eu, key), used_up(us, key)).map(drop)
}

/// A part of a region is gone, then back: clients are served all the time, and what they used is known to the last request.
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

/// The database is gone, then back: regions go on, and hear of each other afterwards.
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
    try_join!(us.hears(&key, eu), eu.hears(&key, us))?;
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

/// Whatever happened: each region knows exactly what passed in it, and what the other one told of.
pub async fn books_are_right(regions: &Regions) -> Result<()> {
    let Regions { eu, us } = regions;
    for (here, there) in [(eu, us), (us, eu)] {
        for key in here.keys() {
            here.agrees(&key).await?;
            if here.passed(&key) > LIMIT / 2 {
                there.hears(&key, here).await?;
            }
        }
    }
    Ok(())
}

/// What is left of a limit passes, and no more than that.
///
/// Where the region did not answer in time, Envoys have decided alone, as the rule says: that tells nothing of what they do
/// together, so another client tries it.
async fn fills(region: &Region, key: &str) -> Result<()> {
    const ATTEMPTS: usize = 4;
    let mut key = key.to_owned();
    for _ in 0..ATTEMPTS {
        let before = region.unanswered().await?;
        region.send(&key, 2 * LIMIT, BOTH).await?;
        // Whoever was refused for a moment leaves a grant to those who come next.
        region.send(&key, FEW, BOTH).await?;
        let passed = region.passed(&key);
        let unanswered = region.unanswered().await?.saturating_sub(before);
        region.agrees(&key).await?;
        if unanswered == 0 || passed <= REGIONAL_MOST {
            ensure!(
                (LIMIT..=REGIONAL_MOST).contains(&passed),
                "{}: {passed} of a limit of {LIMIT} passed for {key}",
                region.name
            );
            return Ok(());
        }
        println!("   {}: {passed} passed for {key}, with {unanswered} questions unanswered", region.name);
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

/// Nothing passes any more. Envoys hear a moment after their aggregators, and may spend their part of what they believe to be
/// left until then.
async fn used_up(region: &Region, key: &str) -> Result<()> {
    let before = region.passed(key);
    let denied = async || region.send(key, FEW, BOTH).await.is_ok_and(|passed| passed == 0);
    let heard = wait::until(&format!("{} denies {key}", region.name), SOON, denied).await;
    let meanwhile = region.passed(key) - before;
    if meanwhile > 0 {
        region.disturb(key);
    }
    let most = LIMIT.saturating_sub(before) / SLACK_PART;
    ensure!(
        heard.is_ok() && meanwhile <= most,
        "{}: {meanwhile} passed for {key}, which has used up its limit",
        region.name
    );
    Ok(())
}
