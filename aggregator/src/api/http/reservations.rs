//! Reservations: a cost that is reserved before it is known, and settled once. Their parsers, and their endpoints.
//!
//! ```json
//! {"id": "4f1c…", "identifier": "alice", "limit": 200000, "duration": "1m", "cost": 5000}
//! {"id": "4f1c…", "expires": 1767226200000, "allowed": true, "decided": true, "limit": 200000, "remaining": 195000, "reset": 1767225600000}
//! {"id": "4f1c…", "cost": 412}
//! ```

use super::HttpApi;
use super::admission::{admit, permit, workspace};
use super::answer::{Checked, Outcome};
use super::checks::{CheckRequest, DEFAULT_TIMEOUT_MS, OnFailure, TIMEOUT, read_body, read_check};
use super::problem::Problem;
use crate::api::permission::Request;
use crate::api::{Booking, LimitCheck, MAX_RESERVED_CHECKS, ReservationName, ReserveError, SettleError};
use crate::auth::Caller;
use crate::telemetry::metrics::Api;
use axum::http::StatusCode;
use serde::Serialize;
use std::time::Duration;
use weir_core::fields::{Errors, Fields, Node, Span};
use weir_core::model::key::MAX_TEXT_BYTES;
use weir_core::model::window::MAX_COUNT;

/// Longest id of a reservation, in bytes.
pub const MAX_ID_BYTES: usize = 64;

const LIFETIME: Span = Span { min_ms: 1_000, max_ms: 3_600_000, example: "10m" };
const DEFAULT_LIFETIME_MS: u64 = 600_000;

const CALL_FIELDS: [&str; 4] = ["id", "workspace", "timeout", "lifetime"];
const CHECK_FIELDS: [&str; 8] =
    ["identifier", "limit", "duration", "cost", "namespace", "algorithm", "hard_limit", "zone"];
const SETTLE_FIELDS: [&str; 4] = ["id", "workspace", "cost", "costs"];
/// What a check of a reservation does not have.
const NO_CHECK_FIELDS: [&str; 3] = ["algorithm", "hard_limit", "zone"];

/// Costs of one check, or of the list of checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Costs {
    /// `cost`, of a reservation of one check.
    One(u64),
    /// `costs`, in the order of `checks`.
    Several(Vec<u64>),
}

/// A parsed reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// Its id.
    pub id: String,
    /// How long it waits for its settlement.
    pub lifetime_ms: u32,
    /// Whether the checks stand in `checks`.
    pub is_list: bool,
    /// The checks.
    pub request: CheckRequest,
}

/// A parsed settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleRequest {
    /// The reservation's id.
    pub id: String,
    /// Its workspace; the caller's own if `None`.
    pub workspace: Option<String>,
    /// The costs.
    pub costs: Costs,
}

/// The answer to a reservation.
#[derive(Debug, Serialize)]
pub(super) struct Reservation {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    #[serde(flatten)]
    outcome: Outcomes,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Outcomes {
    One(Option<Outcome>),
    Several(Checked),
}

/// The answer to a settlement: what was charged.
#[derive(Debug, Serialize)]
pub(super) struct Settled {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<Vec<u64>>,
}

/// Parses the body of `POST /v1/reserve`.
pub fn parse_reserve(json: &[u8]) -> Result<ReserveRequest, Problem> {
    read_body(json, |node, errors| {
        let fields = node.object(&[&CALL_FIELDS[..], &CHECK_FIELDS, &["checks"]].concat(), errors)?;
        let id =
            fields.required("id", "an id that no other reservation has, such as a UUID", errors, read_id);
        let workspace = fields.optional("workspace", errors, |n, e| n.plain_text(MAX_TEXT_BYTES, e));
        let timeout_ms = fields.or("timeout", DEFAULT_TIMEOUT_MS, errors, |n, e| TIMEOUT.read(n, e));
        let lifetime_ms = fields.or("lifetime", DEFAULT_LIFETIME_MS, errors, |n, e| LIFETIME.read(n, e));
        let list = fields.get("checks");
        let checks = match &list {
            None => read_reserved(fields, errors).map(|check| vec![check]),
            Some(list) => {
                let why = "it belongs to each of the checks; give it there";
                fields.reject_given(&CHECK_FIELDS, why, errors);
                list.list(1..=MAX_RESERVED_CHECKS, "checks", errors, |check, errors| {
                    read_reserved(check.object(&CHECK_FIELDS, errors)?, errors)
                })
            }
        };
        Some(ReserveRequest {
            id: id?.to_owned(),
            lifetime_ms: u32::try_from(lifetime_ms?).ok()?,
            is_list: list.is_some(),
            request: CheckRequest {
                workspace: workspace?.map(str::to_owned),
                on_failure: OnFailure::Deny,
                within: Duration::from_millis(timeout_ms?),
                checks: checks?,
            },
        })
    })
}

fn read_reserved(fields: Fields<'_>, errors: &mut Errors) -> Option<LimitCheck> {
    let why = "a reservation is one of a sliding window; leave it out";
    fields.reject_given(&NO_CHECK_FIELDS, why, errors);
    if NO_CHECK_FIELDS.iter().any(|name| fields.get(name).is_some()) {
        return None;
    }
    let expected = "the most that the work is expected to cost, such as 5000";
    fields.required("cost", expected, errors, |_, _| Some(()));
    read_check(fields, errors)
}

/// Parses the body of `POST /v1/settle`.
pub fn parse_settle(json: &[u8]) -> Result<SettleRequest, Problem> {
    read_body(json, |node, errors| {
        let fields = node.object(&SETTLE_FIELDS, errors)?;
        let id = fields.required("id", "the id of a reservation", errors, read_id);
        let workspace = fields.optional("workspace", errors, |n, e| n.plain_text(MAX_TEXT_BYTES, e));
        let cost = |node: Node<'_>, errors: &mut Errors| node.integer(0..=MAX_COUNT, errors);
        let costs = match fields.get("costs") {
            None => {
                let expected =
                    "what the work has cost, or costs with one for each of the reservation's checks";
                fields.required("cost", expected, errors, cost).map(Costs::One)
            }
            Some(list) => {
                fields.reject_given(&["cost"], "costs has the cost of each check; leave it out", errors);
                list.list(1..=MAX_RESERVED_CHECKS, "costs", errors, cost).map(Costs::Several)
            }
        };
        Some(SettleRequest { id: id?.to_owned(), workspace: workspace?.map(str::to_owned), costs: costs? })
    })
}

fn read_id<'a>(node: Node<'a>, errors: &mut Errors) -> Option<&'a str> {
    node.plain_text(MAX_ID_BYTES, errors)
}

/// Answers `POST /v1/reserve`.
pub(super) async fn reserve(
    api: &HttpApi,
    caller: &Caller,
    reserve: ReserveRequest,
) -> Result<Reservation, Problem> {
    let ReserveRequest { id, lifetime_ms, is_list, request } = reserve;
    let request = admit(request, caller, is_list)?;
    let workspace = request.checks.first().map(|check| check.workspace.clone()).unwrap_or_default();
    let name = ReservationName { workspace, id: id.clone().into_bytes() };
    let booking = Booking { checks: request.checks.clone(), lifetime_ms };
    let reserved = api.embedded.reserve(name, booking, request.within).await.map_err(|error| {
        let (status, code) = match error {
            ReserveError::Differs => (StatusCode::CONFLICT, "reservation_differs"),
            ReserveError::Expired => (StatusCode::GONE, "reservation_expired"),
            ReserveError::Full => (StatusCode::SERVICE_UNAVAILABLE, "too_many_reservations"),
        };
        Problem::new(status, code, error.to_string())
    })?;
    let mut checked = Checked::of(&request, &reserved.answer, reserved.at);
    api.services.metrics.api_decided(Api::Http, checked.result(&reserved.answer));
    let outcome = match is_list {
        true => Outcomes::Several(checked),
        false => Outcomes::One(checked.checks.pop()),
    };
    Ok(Reservation { id, expires: reserved.expires.map(|at| at.0), outcome })
}

/// Answers `POST /v1/settle`.
pub(super) fn settle(api: &HttpApi, caller: &Caller, settle: SettleRequest) -> Result<Settled, Problem> {
    let SettleRequest { id, workspace: named, costs } = settle;
    let workspace = workspace(caller, named.as_deref())?.to_vec();
    let name = ReservationName { workspace, id: id.clone().into_bytes() };
    let (values, is_list) = match &costs {
        Costs::One(cost) => (std::slice::from_ref(cost), false),
        Costs::Several(costs) => (costs.as_slice(), true),
    };
    let checks = api.embedded.reserved_checks(&name);
    let mut permission = Request::default();
    for (index, (check, cost)) in checks.iter().flatten().zip(values).enumerate() {
        let charged = LimitCheck { cost: *cost, ..check.clone() };
        let field = |name: &str| match (name, is_list) {
            ("cost", true) => format!("costs[{index}]"),
            ("cost", false) => name.to_owned(),
            _ => "id".to_owned(),
        };
        permit(&mut permission, caller, &charged, field)?;
    }
    api.embedded.settle(&name, values).map_err(|error| unsettled(error, is_list))?;
    let (cost, costs) = match costs {
        Costs::One(cost) => (Some(cost), None),
        Costs::Several(costs) => (None, Some(costs)),
    };
    Ok(Settled { id, cost, costs })
}

fn unsettled(error: SettleError, is_list: bool) -> Problem {
    let (status, code) = match error {
        SettleError::Unknown => (StatusCode::NOT_FOUND, "reservation_unknown"),
        SettleError::Deciding => (StatusCode::CONFLICT, "reservation_undecided"),
        SettleError::Settled => (StatusCode::CONFLICT, "reservation_settled"),
        SettleError::Expired => (StatusCode::GONE, "reservation_expired"),
        SettleError::Checks(checks) => {
            let message =
                format!("the reservation has {checks} checks; expected costs with one cost for each");
            return Problem::field(if is_list { "costs" } else { "cost" }, &message);
        }
    };
    Problem::new(status, code, error.to_string())
}
