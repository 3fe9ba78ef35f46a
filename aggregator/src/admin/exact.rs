//! The use of logs and ledgers, for `/v1/keys` (read from their stores, each within a timeout) and `/v1/top` (what this aggregator
//! decided lately).

use super::control::{self, Limits};
use super::query::KeyQuery;
use super::view::{Control, Exact, TopKey};
use crate::region::exact::ExactUsage;
use crate::region::services::Services;
use crate::telemetry::text::{encode, identifier, text};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::matching::canonical::split_epoch;
use weir_core::model::exact::{Algorithm, ExactKey};
use weir_core::model::key::{Key, KeyParts, Namespace};

/// Timeout of reading all exact limits of an identifier.
const WITHIN: Duration = Duration::from_secs(1);
/// Most exact limits of one identifier in an answer.
const MAX_EXACT: usize = 16;

/// A limit to read: what is known of it, its key, and the limit of a log.
struct Wanted {
    exact: Exact,
    key: Result<ExactKey, String>,
    most: u64,
    control: Control,
}

/// The exact limits of an identifier, with its use.
pub async fn uses(
    services: &Services,
    query: &KeyQuery,
    canonical: &[u8],
    limits: &Limits<'_>,
) -> Vec<Exact> {
    let mut wanted = wanted(services, query, canonical, limits);
    let is_wanted = |ms: u64| query.window_ms.is_none_or(|wanted| wanted == ms || ms == 0);
    wanted.retain(|one| is_wanted(one.exact.window_ms));
    wanted.truncate(MAX_EXACT);
    let deadline = Instant::now() + WITHIN;
    let mut found = Vec::new();
    for Wanted { mut exact, key, most, control } in wanted {
        match key {
            Ok(key) => read(services, &mut exact, (&key, most), deadline).await,
            Err(reason) => exact.trouble = Some(reason),
        }
        control::judge_exact(&mut exact, control, services.now());
        found.push(exact);
    }
    found
}

async fn read(services: &Services, exact: &mut Exact, (key, most): (&ExactKey, u64), deadline: Instant) {
    let within = deadline.saturating_duration_since(Instant::now());
    match services.exact.look(key, most, within).await {
        Ok(Some(found)) => {
            let usage = found.usage;
            exact.window_ms = found.window_ms;
            (exact.used, exact.limit, exact.wait_ms) = (Some(usage.used), usage.limit, usage.wait_ms);
            exact.remaining = usage.limit.map(|limit| limit.saturating_sub(usage.used));
            exact.passes = Some(usage.wait_ms == Some(0));
            exact.denied = found.denied;
        }
        Ok(None) => exact.trouble = Some("the zone does not exist".to_owned()),
        Err(unread) => exact.trouble = Some(unread.to_string()),
    }
}

/// The limits of the namespace's rules, or of the zone; and those with a window of their own that were decided lately without a rule.
fn wanted(services: &Services, query: &KeyQuery, canonical: &[u8], limits: &Limits<'_>) -> Vec<Wanted> {
    let now = services.now();
    let want = |algorithm: Algorithm, window_ms, limit: u64, exact| {
        let (zone, workspace, namespace) = (algorithm.zone(), &query.workspace, &query.namespace);
        let window_ms = if zone.is_none() { window_ms } else { 0 };
        let control = control::control_of(services, query, canonical, window_ms, now);
        let parts = KeyParts {
            workspace,
            namespace,
            identifier: canonical,
            duration_ms: window_ms,
            epoch: control.epoch,
            resolution: 1,
        };
        let key = algorithm.exact_key(&parts).map_err(|error| error.to_string()).transpose()?;
        let most = control.limit_over(&[limit], None).unwrap_or(limit).min(algorithm.max_limit());
        let limit = zone.is_none().then_some(most);
        let exact = Exact { algorithm: algorithm.kind().name().to_owned(), zone, window_ms, limit, ..exact };
        Some(Wanted { exact, key, most, control })
    };
    if let Some(zone) = query.zone {
        return want(Algorithm::Ledger { zone }, 0, 0, Exact::default()).into_iter().collect();
    }
    let mut wanted = Vec::new();
    for rule in limits.rules_in(&query.workspace, &query.namespace) {
        let Some(algorithm) = rule.algorithm().filter(|algorithm| algorithm.kind().is_exact()) else {
            continue;
        };
        let exact = Exact { name: rule.name.clone(), shadow: rule.shadow, ..Exact::default() };
        wanted.extend(want(algorithm, rule.window_ms, rule.limit, exact));
    }
    for ExactUsage { key, usage, window_ms, .. } in services.exact.of_identifier(canonical) {
        let Some(parts) = key.own().map(Key::parts) else { continue };
        let is_here = parts.workspace == query.workspace && parts.namespace == query.namespace;
        if is_here && !wanted.iter().any(|one| one.key.as_ref() == Ok(&key)) {
            let limit = usage.limit.unwrap_or_default();
            let lately = want(key.algorithm(), window_ms, limit, Exact::default());
            wanted.extend(lately.map(|lately| Wanted { key: Ok(key), ..lately }));
        }
    }
    wanted
}

/// A key as displayed.
pub fn top_key(found: &ExactUsage, limits: &Limits<'_>) -> TopKey {
    let usage = found.usage;
    let (algorithm, own) = (found.key.algorithm(), found.key.own().map(Key::parts));
    let of_zone = algorithm.zone().and_then(|zone| limits.namespace_of(zone)).unwrap_or_default();
    let of_zone = Namespace { workspace: of_zone.workspace.as_bytes(), name: of_zone.name.as_bytes() };
    let namespace = own.map_or(of_zone, |own| own.whole_namespace());
    let (canonical, epoch) = match own {
        Some(KeyParts { identifier, epoch, .. }) => (identifier, epoch),
        None => split_epoch(found.key.identifier()),
    };
    let key = TopKey {
        workspace: text(namespace.workspace),
        namespace: text(namespace.name),
        identifier: identifier(canonical),
        counted: encode(canonical),
        epoch,
        zone: algorithm.zone(),
        algorithm: algorithm.kind().name().to_owned(),
        duration_ms: found.window_ms,
        resolution: 1,
        used: usage.used,
        limit: usage.limit.unwrap_or(u64::MAX),
        wait_ms: usage.wait_ms,
        denied: Some(found.denied),
        age_ms: found.age_ms,
        ..TopKey::default()
    };
    if limits.ruled(&found.key).shadow { key.in_shadow() } else { key }
}
