//! `/v1/overrides`: the live control in force, newest first; and `/v1/overrides/audit`: its changes, newest first.
//!
//! What is in force comes from this aggregator's memory, so it is shown without the database too. Authors and reasons
//! are in the database alone. Nothing can be changed here.

use super::query::OverridesQuery;
use crate::controls::{AuditFilter, audited_json, control_json, name_and_value, stored_json};
use crate::region::control::details::{ByRevision, Unread};
use crate::region::services::Services;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_core::control::{Control, Effect, Selector};

/// The live control in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overrides {
    /// The region.
    pub region: String,
    /// By the region's time.
    pub now_unix_ms: u64,
    /// Where authors and reasons come from: `read` from the database, `unavailable` (those read before are shown), or
    /// `none` if there is no database, and therefore no live control.
    pub database: String,
    /// The revision of the last change that this aggregator has read.
    pub revision: u64,
    /// Number of controls in force.
    pub in_force: u64,
    /// Number of bans among them.
    pub bans: u64,
    /// Number of controls that the query selects, on all of its pages.
    pub matching: u64,
    /// The controls, as in the HTTP API's `GET /v1/overrides`. Without the database they have no author, reason and times.
    pub overrides: Vec<Value>,
    /// The value of `before` for the next page; absent at the end.
    pub next: Option<u64>,
}

/// Changes of live control.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// The changes, as in the HTTP API's `GET /v1/overrides/audit`.
    pub changes: Vec<Value>,
    /// The value of `before` for the next page; absent at the end.
    pub next: Option<u64>,
}

/// The controls that a query selects.
pub async fn overrides(services: &Services, query: &OverridesQuery) -> Overrides {
    let (book, now) = (services.control.book(), services.now());
    let (details, database) = match &services.global {
        None => Default::default(),
        Some(global) => match services.control.details.of(&book, global, now).await {
            (details, true) => (details, "read"),
            (details, false) => (details, "unavailable"),
        },
    };
    let mut answer = Overrides {
        region: services.region_name.clone(),
        now_unix_ms: now.0,
        database: if services.global.is_some() { database } else { "none" }.to_owned(),
        revision: book.edition().map_or(0, |edition| edition.revision),
        ..Overrides::default()
    };
    let selects = selects(query, &details);
    let entries = book.entries().rev().filter(|entry| !entry.is_deleted);
    for control in entries.map(|entry| entry.control).filter(|control| control.is_in_force(now)) {
        answer.in_force += 1;
        answer.bans += u64::from(control.effect == Effect::Ban);
        if !selects(&control) {
            continue;
        }
        answer.matching += 1;
        if query.before.is_some_and(|before| control.revision >= before) {
            continue;
        }
        if answer.overrides.len() < query.limit {
            let stored = details.get(&control.revision);
            answer.overrides.push(stored.map_or_else(|| control_json(&control), stored_json));
        } else if answer.next.is_none() {
            answer.next = answer.overrides.last().and_then(|last| last["revision"].as_u64());
        }
    }
    answer
}

/// Whether a control is of the query's kind and has its text.
fn selects<'a>(query: &'a OverridesQuery, details: &'a ByRevision) -> impl Fn(&Control) -> bool + 'a {
    let text = query.text.to_lowercase();
    let has = move |part: &str| part.to_lowercase().contains(&text);
    move |control| {
        let target = &control.target;
        let is_kind = query.kind.as_deref().is_none_or(|kind| name_and_value(&control.effect).0 == kind);
        let is_named = || match &target.selector {
            Selector::Identifier(identifier) => has(identifier),
            Selector::Network(network) => has(&network.to_string()),
            Selector::Rule => false,
        };
        let stored = || details.get(&control.revision);
        is_kind
            && (query.text.is_empty()
                || is_named()
                || has(&target.scope)
                || has(&target.workspace)
                || stored().is_some_and(|stored| has(&stored.author) || has(&stored.reason)))
    }
}

/// The changes that a filter selects.
pub async fn audit(services: &Services, filter: &AuditFilter) -> Result<Changes, Unread> {
    let global = services.global.as_ref().ok_or(Unread::NoDatabase)?;
    let found = services.control.details.audit(global, filter).await?;
    let is_full = found.len() == usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| is_full).map(|last| last.id);
    Ok(Changes { changes: found.iter().map(audited_json).collect(), next })
}
