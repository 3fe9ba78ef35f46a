//! Applies to the current request what a plugin has decided, by the calls of either edge.

use crate::host::calls;
use crate::host::headers::Nothing;
use crate::host::request::Headers;
use crate::plugin::{Effect, Label, Refusal};
use crate::responses::Response;
use weir_core::rules::METADATA_PATH;

/// Applies an effect to the current request. If Envoy refuses, the request has ended and nothing is to be done.
pub fn perform(effect: Effect) {
    match effect {
        Effect::Pause => {}
        Effect::Pass => {
            let _ = calls::resume_request();
        }
        Effect::PassLabelled(label) => {
            show(&label);
            let _ = calls::resume_request();
        }
        Effect::Refuse(refusal) => {
            let Refusal { response, rule, label } = *refusal;
            label.iter().for_each(show);
            let Response { status, details, headers, body, grpc_status, rpc: _ } = completed(response);
            let details = code_details(details, rule.as_deref());
            let _ = calls::respond(status, &details, &headers, body.as_bytes(), grpc_status);
        }
    }
}

/// What `%RESPONSE_CODE_DETAILS%` shows, with the rule as Envoy's RBAC filter names its policies.
fn code_details(why: &str, rule: Option<&str>) -> String {
    match rule {
        Some(rule) => [why, "[", rule, "]"].concat(),
        None => why.to_owned(),
    }
}

/// Writes rule and outcome for access logs to the filter state, as a WASM filter cannot set dynamic metadata.
pub fn show(label: &Label) {
    calls::set_filter_state("weir_rule", &label.rule);
    calls::set_filter_state("weir_outcome", label.outcome);
}

/// An error of JSON-RPC with the id of the current request's call.
fn completed(response: Response) -> Response {
    let Some(rpc) = &response.rpc else { return response };
    let mut id = Vec::new();
    if !calls::property(rpc.id_path(), &mut id) {
        id.clear();
    }
    let mut metadata = Vec::new();
    if rpc.needs_metadata(&id) && !calls::property(METADATA_PATH, &mut metadata) {
        metadata.clear();
    }
    let accept = calls::request_headers(|headers| {
        let headers = Headers::new(headers, Nothing);
        let lines: Vec<&[u8]> = headers.lines(b"accept").collect();
        (!lines.is_empty()).then(|| lines.join(&b','))
    });
    response.complete(&id, &metadata, accept.as_deref())
}
