//! Live control over HTTP: `GET`, `PUT` and `DELETE /v1/overrides`, and `GET /v1/overrides/audit`.
//!
//! A change is stored in the database or not made at all, and is sent to this region's filters at once. In reading order:
//! this file (permissions, responses), `turns`, `parse` (requests), `reach` (whether a filter counts there).

mod parse;
mod reach;
mod turns;

use parse::{Removal, parse_audit, parse_delete, parse_list, parse_put};
use turns::{Turn, Turns};

use super::HttpApi;
use super::problem::{FieldProblem, Problem};
use crate::auth::Caller;
use crate::controls::{
    MAX_REASON_BYTES, NAME_THE_DIGEST, audited_json, name_and_value, put_field, stored_json,
};
use crate::database::{DatabaseError, Reason};
use crate::region::global::Global;
use crate::telemetry::throttle::Throttle;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::{info, warn};
use weir_core::control::book::MAX_KEPT;
use weir_core::control::change::{Bound, Change, Changed, MAX_AUTOMATIC, StoredControl, Wish};
use weir_core::control::{Control, MAX_CONTROLS, Target};
use weir_core::model::time::UnixMs;

/// Longest body of a `PUT`.
pub const MAX_BYTES: usize = 16 * 1024;
/// Longest wait for a turn to call the database.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Timeout of a database call. It is longer than the wait for a lock, which is 3 s and, as the
/// database checks once a second, up to 4 s. A caller that waited for a lock in vain therefore gets the error `busy`.
const WITHIN: Duration = Duration::from_secs(5);
/// Least time between two warnings that the database does not answer.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);
/// Latest end of a control, the end of the year 9999; a later one is assumed to be a mistake.
const LATEST: UnixMs = UnixMs(253_402_300_799_999);
/// The author of a change without tokens.
const UNNAMED: &str = "anybody";
/// Appended to an author's name that was given without a token.
const UNVERIFIED: &str = " (unverified)";

/// Bounds the calls to the database.
pub struct DatabaseTurns {
    turns: Turns,
    warnings: Throttle,
}

impl Default for DatabaseTurns {
    fn default() -> DatabaseTurns {
        DatabaseTurns { turns: Turns::default(), warnings: Throttle::new(BETWEEN_WARNINGS) }
    }
}

/// `GET /v1/overrides?…`
pub(super) async fn list(api: &HttpApi, query: &str, caller: &Caller) -> Result<Value, Problem> {
    let mut filter = parse_list(query)?;
    filter.place.workspace = workspace(caller, Some(&filter.place.workspace))?;
    let (global, _turn) = api.turn(&filter.place.workspace).await?;
    let found = global.database.controls(&filter, api.services.now(), WITHIN).await;
    let found = found.map_err(|error| api.overrides.unavailable(&error))?;
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
    let (global, _turn) = api.turn(&filter.place.workspace).await?;
    let found = global.database.control_audit(&filter, WITHIN).await;
    let found = found.map_err(|error| api.overrides.unavailable(&error))?;
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
    if reach::is_secret(&api.services, &control.target) {
        let problem = FieldProblem { field: "identifier".to_owned(), message: NAME_THE_DIGEST.to_owned() };
        return Err(Problem::fields(vec![problem]));
    }
    let wish = Wish::Set(request.effect, expires);
    let warning = reach::warning(&api.services, caller, &control.target);
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
    let (global, turn) = api.turn(&change.target.workspace).await?;
    let changed = api.services.control.change(global, std::slice::from_ref(&change), WITHIN).await;
    drop(turn);
    let changed = changed.map_err(|error| api.overrides.unavailable(&error))?;
    let book_revision = api.services.control.book().edition().map_or(0, |edition| edition.revision);
    match changed.into_iter().next() {
        Some(Changed::Done(stored, was)) => {
            log_change(&stored);
            let revision = stored.control.revision;
            let mut answer =
                json!({"revision": revision, "changed": true, "known": book_revision >= revision});
            let is_now = (!stored.is_deleted).then(|| stored_json(&stored));
            put_field(&mut answer, "override", is_now);
            put_field(&mut answer, "before", was.as_deref().map(stored_json));
            Ok(answer)
        }
        Some(Changed::Same(stored) | Changed::Kept(stored)) => {
            let revision = stored.control.revision;
            let mut answer =
                json!({"revision": revision, "changed": false, "known": book_revision >= revision});
            put_field(&mut answer, "override", (!stored.is_deleted).then(|| stored_json(&stored)));
            Ok(answer)
        }
        Some(Changed::Full(bound)) => Err(full(bound)),
        Some(Changed::Missing) | None => {
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
    async fn turn(&self, workspace: &str) -> Result<(&Arc<Global>, Turn<'_>), Problem> {
        let message = "no database is set (--database-url), so live control is not available";
        let global = self.services.global.as_ref();
        let global =
            global.ok_or_else(|| Problem::new(StatusCode::NOT_IMPLEMENTED, "no_database", message))?;
        let turn = timeout(MAX_WAIT, self.overrides.turns.take(workspace)).await.ok().flatten();
        let busy =
            || busy("too many reads and changes of this workspace's live control wait; try again later");
        Ok((global, turn.ok_or_else(busy)?))
    }
}

impl DatabaseTurns {
    fn unavailable(&self, error: &DatabaseError) -> Problem {
        // The database's error may name its address, so it is only logged.
        if let Some(held_back) = self.warnings.pass() {
            warn!(%error, held_back, "could not read or change live control");
        }
        let message = match error.kind() {
            Reason::LockWait | Reason::Deadlock => {
                return busy(
                    "other changes of live control were in progress for too long, and this one was not made; try again",
                );
            }
            Reason::Schema => {
                "the database lacks tables of this version; the controls in force stay as they are; its operator has to run \
                 weir-aggregator migrate"
            }
            Reason::Refused => {
                "the database refuses the aggregator's account; the controls in force stay as they are; its operator has to look into \
                 the aggregator's log"
            }
            _ => "the database does not answer; the controls in force stay as they are; try again later",
        };
        unavailable(message)
    }
}

fn busy(message: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
}

fn unavailable(message: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", message)
}

const _: () =
    assert!(MAX_AUTOMATIC < MAX_CONTROLS && MAX_CONTROLS < MAX_KEPT && MAX_REASON_BYTES < MAX_BYTES);
