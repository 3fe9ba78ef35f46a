//! Live control over HTTP: `GET`, `PUT` and `DELETE /v1/overrides`, and `GET /v1/overrides/audit`.
//!
//! A change is stored in the database or not made at all, and is sent to this region's filters at once. In reading order:
//! this file (permissions, responses), `parse` (requests), `reach` (whether a filter counts there).

mod parse;
mod reach;

use parse::{Removal, parse_audit, parse_delete, parse_list, parse_put};

use super::HttpApi;
use super::problem::Problem;
use crate::auth::Caller;
use crate::controls::{
    MAX_REASON_BYTES, NAME_THE_DIGEST, audited_json, name_and_value, put_field, stored_json,
};
use crate::region::control::access::{Access, AccessError};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tracing::info;
use weir_core::control::book::MAX_KEPT;
use weir_core::control::change::{Bound, Change, ChangeOutcome, MAX_AUTOMATIC, StoredControl, Wish};
use weir_core::control::{Control, MAX_CONTROLS, Target};
use weir_core::model::time::UnixMs;

/// Longest body of a `PUT`.
pub const MAX_BYTES: usize = 16 * 1024;
/// Latest end of a control, the end of the year 9999; a later one is assumed to be a mistake.
const LATEST: UnixMs = UnixMs(253_402_300_799_999);
/// The author of a change without tokens.
const UNNAMED: &str = "anybody";
/// Appended to an author's name that was given without a token.
const UNVERIFIED: &str = " (unverified)";

/// `GET /v1/overrides?…`
pub(super) async fn list(api: &HttpApi, query: &str, caller: &Caller) -> Result<Value, Problem> {
    let mut filter = parse_list(query)?;
    filter.place.workspace = workspace(caller, Some(&filter.place.workspace))?;
    let found = api.access(&filter.place.workspace).await?.controls(&filter).await.map_err(problem)?;
    let full = found.len() == usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| last.control.revision);
    let mut answer = json!({"overrides": found.iter().map(stored_json).collect::<Vec<_>>()});
    put_field(&mut answer, "next", next.map(Value::from));
    Ok(answer)
}

/// `GET /v1/overrides/audit?…`
pub(super) async fn audit(api: &HttpApi, query: &str, caller: &Caller) -> Result<Value, Problem> {
    let mut filter = parse_audit(query)?;
    filter.place.workspace = workspace(caller, Some(&filter.place.workspace))?;
    let found = api.access(&filter.place.workspace).await?.audit(&filter).await.map_err(problem)?;
    let full = found.len() == usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let next = found.last().filter(|_| full).map(|last| last.id);
    let mut answer = json!({"changes": found.iter().map(audited_json).collect::<Vec<_>>()});
    put_field(&mut answer, "next", next.map(Value::from));
    Ok(answer)
}

/// `PUT /v1/overrides`
pub(super) async fn put(api: &HttpApi, body: &[u8], caller: &Caller) -> Result<Value, Problem> {
    let request = parse_put(body)?;
    let workspace = workspace(caller, request.place.workspace.as_deref())?;
    let now = api.services.now();
    let expires = request.expires.map(|expiry| expiry.at(now)).transpose()?;
    let target = request.place.target(workspace);
    let control = Control { target, effect: request.effect, expires, revision: 0 };
    control.check().map_err(|error| parse::explain(&error, request.effect))?;
    let rules = api.services.status.rules_of_region();
    if reach::is_secret(&rules, &control.target) {
        return Err(Problem::field("identifier", NAME_THE_DIGEST));
    }
    let wish = Wish::Set(request.effect, expires);
    let warning = reach::warning(&rules, caller, &control.target);
    let mut answer = change(api, by(caller, request.author, control.target, wish, request.reason)).await?;
    put_field(&mut answer, "warning", warning.map(Value::from));
    Ok(answer)
}

/// `DELETE /v1/overrides?…`
pub(super) async fn delete(api: &HttpApi, query: &str, caller: &Caller) -> Result<Value, Problem> {
    let Removal { place, slot, reason, author } = parse_delete(query)?;
    let target = place.target(workspace(caller, place.workspace.as_deref())?);
    change(api, by(caller, author, target, Wish::Delete(slot), reason)).await
}

/// A change by the caller. With a token, its author is the token's name, whatever name the request gives.
fn by(caller: &Caller, claimed: Option<String>, target: Target, wish: Wish, reason: String) -> Change {
    let author = match (caller.name.as_str(), claimed) {
        ("", Some(name)) => name + UNVERIFIED,
        ("", None) => UNNAMED.to_owned(),
        (name, _) => name.to_owned(),
    };
    Change { target, wish, reason, author, automatic: None }
}

async fn change(api: &HttpApi, change: Change) -> Result<Value, Problem> {
    let changed = api.access(&change.target.workspace).await?.change(change).await.map_err(problem)?;
    let book_revision = api.services.control.book().edition().map_or(0, |edition| edition.revision);
    match changed {
        Some(ChangeOutcome::Done(stored, was)) => {
            log_change(&stored);
            let revision = stored.control.revision;
            let mut answer =
                json!({"revision": revision, "changed": true, "known": book_revision >= revision});
            let is_now = (!stored.is_deleted).then(|| stored_json(&stored));
            put_field(&mut answer, "override", is_now);
            put_field(&mut answer, "before", was.as_deref().map(stored_json));
            Ok(answer)
        }
        Some(ChangeOutcome::Same(stored) | ChangeOutcome::Kept(stored)) => {
            let revision = stored.control.revision;
            let mut answer =
                json!({"revision": revision, "changed": false, "known": book_revision >= revision});
            put_field(&mut answer, "override", (!stored.is_deleted).then(|| stored_json(&stored)));
            Ok(answer)
        }
        Some(ChangeOutcome::Full(bound)) => Err(full(bound)),
        Some(ChangeOutcome::Missing) | None => {
            let message = "there is no such override; GET /v1/overrides lists those in force";
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", message))
        }
    }
}

/// Logs a change without identifier and network: identifiers may be secret keys, and networks may identify persons. The audit
/// has both.
fn log_change(stored: &StoredControl) {
    let Control { target, effect, revision, .. } = &stored.control;
    let (action, kind) = (if stored.is_deleted { "deleted" } else { "set" }, name_and_value(effect).0);
    let (workspace, scope, author) = (&target.workspace, &target.scope, &stored.author);
    info!(action, kind, workspace, scope, revision, author, "live control changed");
}

fn full(bound: Bound) -> Problem {
    let message = match bound {
        Bound::Controls | Bound::Rules => format!(
            "this workspace may have no more live controls: at most {MAX_CONTROLS} of all workspaces are in force, of one at most \
                         three times as many as are left; delete some, or replace several by one with a pattern. Resets never expire: delete \
                         those that are older than two of their windows, as the former counts have ended by then"
        ),
        Bound::Revisions => "the database has used up its revisions".to_owned(),
    };
    Problem::new(StatusCode::INSUFFICIENT_STORAGE, "too_many_overrides", message)
}

/// The requested workspace, if the caller may see and change its controls.
fn workspace(caller: &Caller, named: Option<&str>) -> Result<String, Problem> {
    if !caller.may_control() {
        let message = match caller.has_no_credential() {
            true => {
                "live control needs a token, and this aggregator has no tokens file; set --tokens-file, or allow live \
                                 control without tokens with --insecure control"
            }
            false => {
                "this token does not allow live control; set control: true in its entry of the tokens file"
            }
        };
        return Err(Problem::new(StatusCode::FORBIDDEN, "control_not_allowed", message));
    }
    let named = named.filter(|named| !named.is_empty()).map(str::as_bytes);
    match caller.workspace(named).map(|found| String::from_utf8_lossy(found).into_owned()) {
        Some(workspace) => Ok(workspace),
        None => {
            let message = "this token is for another workspace; leave the field out".to_owned();
            Err(Problem::forbidden("workspace_not_allowed", "workspace".to_owned(), message))
        }
    }
}

impl HttpApi {
    /// Waits for a turn of a workspace to call the database.
    async fn access(&self, workspace: &str) -> Result<Access<'_>, Problem> {
        self.services.control.access(self.services.global.as_ref(), workspace).await.map_err(problem)
    }
}

fn problem(error: AccessError) -> Problem {
    let (status, code) = match error {
        AccessError::NoDatabase => (StatusCode::NOT_IMPLEMENTED, "no_database"),
        AccessError::Waits | AccessError::Locked => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        AccessError::Unavailable | AccessError::LacksTables | AccessError::Refused => {
            (StatusCode::SERVICE_UNAVAILABLE, "database_unavailable")
        }
    };
    Problem::new(status, code, error.to_string())
}

const _: () =
    assert!(MAX_AUTOMATIC < MAX_CONTROLS && MAX_CONTROLS < MAX_KEPT && MAX_REASON_BYTES < MAX_BYTES);
