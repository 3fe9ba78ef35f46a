//! `/v1/top`: the keys nearest their limits.
//!
//! The selection and the numbers of keys use the limits that were applied last. The displayed usage and the order use
//! the limits that apply now under live control.

use super::control::Limits;
use super::text::{encode, identifier, text};
use crate::region::services::Services;
use crate::region::status::top::Scan;
use serde::{Deserialize, Serialize};
use weir_core::region::top::{KeyUsage, Ranked};

/// The keys nearest their limits, and numbers of keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Top {
    /// The region.
    pub region: String,
    /// By the aggregator's clock.
    pub now_unix_ms: u64,
    /// Milliseconds since the keys were scanned.
    pub age_ms: u64,
    /// Number of keys in memory.
    pub keys_held: u64,
    /// Number of keys with a known limit.
    pub keys_limited: u64,
    /// Number of keys past half their limit.
    pub keys_past_half: u64,
    /// Number of keys over their limit: a cost of 1 would be denied.
    pub keys_over: u64,
    /// The keys nearest their limits, in descending order.
    pub keys: Vec<TopKey>,
}

/// A key and its usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKey {
    /// The workspace.
    pub workspace: String,
    /// The namespace.
    pub namespace: String,
    /// The identifier as text.
    pub identifier: String,
    /// The identifier percent-encoded, for `/v1/keys?counted=…`.
    pub counted: String,
    /// The window in milliseconds.
    pub duration_ms: u64,
    /// The epoch, which resets raise.
    pub epoch: u32,
    /// Cells in a window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// The limit of live control, or else the lowest limit applied in the newest cell.
    pub limit: u64,
    /// The part of `used` that other regions used.
    pub global_others: u64,
    /// Use per second since the previous scan; absent if unknown.
    pub per_second: Option<f64>,
    /// Milliseconds until a cost of 1 passes, if nothing more is used: 0 if it passes now, absent if it never does.
    pub wait_ms: Option<u64>,
}

/// The first `limit` of them.
pub async fn top(services: &Services, limit: usize) -> Top {
    let scan = services.status.scan.latest(&services.hub, &services.status).await;
    let (top, now) = (&scan.top, services.now());
    let limits = Limits::new(services, now);
    let mut ranked: Vec<_> = top.nearest.iter().map(|one| (one, limits.ranked(one))).collect();
    // Live control may have changed the limits of some keys, so the order is computed again.
    ranked.sort_by(|(_, one), (_, other)| other.cmp_share(one));
    ranked.truncate(limit);
    Top {
        region: services.region_name.clone(),
        now_unix_ms: now.0,
        age_ms: u64::try_from(scan.at.elapsed().as_millis()).unwrap_or(u64::MAX),
        keys_held: scan.held as u64,
        keys_limited: top.limited,
        keys_past_half: top.past_half,
        keys_over: top.over,
        keys: ranked.into_iter().map(|(one, usage)| key(one, usage, &scan)).collect(),
    }
}

/// A key as displayed.
pub fn key(ranked: &Ranked, usage: KeyUsage, scan: &Scan) -> TopKey {
    let parts = ranked.key.parts();
    TopKey {
        workspace: text(parts.workspace),
        namespace: text(parts.namespace),
        identifier: identifier(parts.identifier),
        counted: encode(parts.identifier),
        duration_ms: parts.duration_ms,
        epoch: parts.epoch,
        resolution: parts.resolution,
        used: usage.used,
        limit: usage.limit.unwrap_or(u64::MAX),
        global_others: usage.global_others,
        per_second: scan.growth.get(&ranked.key).copied(),
        wait_ms: usage.wait_ms,
    }
}
