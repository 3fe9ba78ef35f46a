//! What `/v1/top` says: the keys nearest their limits.
//!
//! Which are nearest, and how many are how near, follows from the limits that were applied last; how those stand that are
//! shown, and in which order, from the limits that live control says by now.
//!
//! Leaves to others: the walk (`window::top`), the limits (`control`).

use super::control::Limits;
use super::text::{encode, identifier, text};
use crate::region::services::Services;
use crate::region::status::top::Scan;
use serde::{Deserialize, Serialize};
use weir_core::region::top::{KeyUsage, Ranked};

/// The keys nearest their limits, and how many there are of which kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Top {
    /// The region.
    pub region: String,
    /// By the aggregator's clock.
    pub now_unix_ms: u64,
    /// Since the keys were looked at.
    pub age_ms: u64,
    /// Keys held.
    pub keys_held: u64,
    /// Keys of which a limit is known.
    pub keys_limited: u64,
    /// Past half of it.
    pub keys_past_half: u64,
    /// Over it: a cost of 1 would be denied.
    pub keys_over: u64,
    /// The nearest to their limits, first.
    pub keys: Vec<TopKey>,
}

/// A key and how it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKey {
    /// Whose limit.
    pub workspace: String,
    /// Which family of limits.
    pub namespace: String,
    /// Who is limited, as far as that is text.
    pub identifier: String,
    /// The same percent-encoded, for `/v1/explain?counted=…`.
    pub counted: String,
    /// The window.
    pub duration_ms: u64,
    /// Raised by resets.
    pub epoch: u32,
    /// Cells per window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// The limit that live control says, else the lowest that was applied in the newest cell.
    pub limit: u64,
    /// What of `used` other regions used.
    pub global_others: u64,
    /// What is used each second, since the look before; absent if that is not known.
    pub per_second: Option<f64>,
    /// Until a cost of 1 passes if nothing more is used: 0 if it passes now; absent if it never does.
    pub wait_ms: Option<u64>,
}

/// The first `limit` of them.
pub async fn top(services: &Services, limit: usize) -> Top {
    let scan = services.status.scan.latest(&services.hub, &services.status).await;
    let (top, now) = (&scan.top, services.now());
    let limits = Limits::new(services, now);
    let mut ranked: Vec<_> = top.nearest.iter().map(|one| (one, limits.ranked(one))).collect();
    // Those that live control has given another limit may stand elsewhere by now.
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

/// A key as it is shown.
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
