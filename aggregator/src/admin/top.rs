//! `/v1/top`: the keys nearest their limits, of windows, logs and ledgers.
//!
//! The selection and the numbers of keys use the limits that were applied last. The displayed usage and the order use
//! the limits that apply now under live control.
//!
//! A key whose rules are all in shadow mode is no denial: it is found by a search alone, and stated to pass.

use super::control::{Limits, only_shadow};
use super::exact;
use super::query::TopQuery;
use super::view::TopKey;
use crate::region::services::Services;
use crate::region::status::top::Scan;
use crate::telemetry::text::{encode, identifier, text};
use serde::{Deserialize, Serialize};
use weir_core::model::exact::AlgorithmKind;
use weir_core::region::top::{KeyUsage, Match, Ranked};

/// The keys nearest their limits, and numbers of keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Top {
    /// The region.
    pub region: String,
    /// By the region's time.
    pub now_unix_ms: u64,
    /// Milliseconds since the keys were scanned.
    pub age_ms: u64,
    /// Number of keys in memory, and of exact ones that were decided lately.
    pub keys_held: u64,
    /// Number of keys with a known limit.
    pub keys_limited: u64,
    /// Number of keys past half their limit, without those that only shadow rules count.
    pub keys_past_half: u64,
    /// Number of keys over their limit: a cost of 1 would be denied. Without those that only shadow rules count.
    pub keys_over: u64,
    /// The keys nearest their limits, in descending order; of a search, the best matches first.
    pub keys: Vec<TopKey>,
}

/// The keys that a query selects.
pub async fn top(services: &Services, query: &TopQuery) -> Top {
    let scans = &services.status.scan;
    let scan = match query.text.as_slice() {
        [] => scans.latest(&services.hub, &services.status).await,
        text => scans.matching(text, &services.hub, &services.status).await,
    };
    let (top, now) = (&scan.top, services.now());
    let limits = Limits::new(services, now);
    let exact = services.exact.nearest(&query.text, |key| limits.ruled(key)).await;
    let windows = top.nearest.iter().map(|one| (one, limits.ranked(one)));
    let windows = windows.map(|(one, usage)| ((one.matches, usage), key(one, usage, &scan, &limits)));
    let exact_keys = exact.keys.iter().map(|one| ((one.matches, one.usage), exact::top_key(one, &limits)));
    let mut ranked: Vec<_> = windows.chain(exact_keys).collect();
    // Live control may have changed the limits of some keys, so the order is computed again. Of one identifier those that may be denied come
    // first.
    let passes =
        |found: Match, key: &TopKey| found <= Match::WholeInOtherCase && key.but_for_shadow.is_some();
    ranked.sort_by(|((match_one, one), key), ((match_other, other), other_key)| {
        let order = match_one.cmp(match_other);
        order
            .then_with(|| passes(*match_one, key).cmp(&passes(*match_other, other_key)))
            .then_with(|| other.cmp_share(one))
    });
    ranked.truncate(query.limit);
    Top {
        region: services.region_name.clone(),
        now_unix_ms: now.0,
        age_ms: u64::try_from(scan.at.elapsed().as_millis()).unwrap_or(u64::MAX),
        keys_held: (scan.held as u64).saturating_add(exact.limited),
        keys_limited: top.limited.saturating_add(exact.limited),
        keys_past_half: top.past_half.saturating_add(exact.past_half),
        keys_over: top.over.saturating_add(exact.over),
        keys: ranked.into_iter().map(|(_, key)| key).collect(),
    }
}

/// A key as displayed.
pub fn key(ranked: &Ranked, usage: KeyUsage, scan: &Scan, limits: &Limits<'_>) -> TopKey {
    let parts = ranked.key.parts();
    let key = TopKey {
        algorithm: AlgorithmKind::Window.name().to_owned(),
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
        ..TopKey::default()
    };
    if only_shadow(limits.rules(&parts)) { key.in_shadow() } else { key }
}
