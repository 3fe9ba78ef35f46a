//! One function for each parser that reads bytes from outside. It may refuse them. It must not panic, take long, or break what
//! its documentation promises.
//!
//! [`TARGETS`] names them all. The program `weir-fuzz` calls one with inputs of libFuzzer (`./justw fuzz`);
//! `tests/corpora.rs` calls each with its inputs in `corpus/`, without a fuzzer. Inputs called
//! `found-N` come from libFuzzer: they reach code that those written by hand do not.
#![forbid(unsafe_code)]

mod aggregator;
mod core;

/// A parser that is given bytes. It panics if the parser breaks a promise.
pub type Target = fn(&[u8]);

/// Every target, by the folder of its inputs in `corpus/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("core/filter_config", core::requests::filter_config),
    ("core/resolve", core::requests::resolve),
    ("core/traceparent", core::requests::traceparent),
    ("core/key", core::frames::key),
    ("core/filter_frame", core::frames::filter_frame),
    ("core/region_frame", core::frames::region_frame),
    ("core/changes", core::frames::changes),
    ("core/shared_data", core::shared_data::shared_data),
    ("core/controls", core::control::controls),
    ("core/stored_controls", core::control::stored_controls),
    ("core/sliding_log", core::log::sliding_log),
    ("aggregator/envoy_config", aggregator::configuration::envoy_config),
    ("aggregator/admin_query", aggregator::admin::admin_query),
    ("aggregator/redis_url", aggregator::stores::redis_url),
    ("aggregator/database_url", aggregator::stores::database_url),
    ("aggregator/column_identifier", aggregator::stores::column_identifier),
    ("aggregator/log_answer", aggregator::stores::log_answer),
    ("aggregator/limit_body", aggregator::api::limit_body),
    ("aggregator/limits_body", aggregator::api::limits_body),
    ("aggregator/reserve_body", aggregator::api::reserve_body),
    ("aggregator/settle_body", aggregator::api::settle_body),
    ("aggregator/ledger_query", aggregator::api::ledger_query),
    ("aggregator/tokens_file", aggregator::api::tokens_file),
    ("aggregator/authorization", aggregator::api::authorization),
    ("aggregator/rate_limits", aggregator::api::rate_limits),
    ("aggregator/rate_limit_resource", aggregator::api::rate_limit_resource),
    ("aggregator/rate_limit_request", aggregator::api::rate_limit_request),
    ("aggregator/grpc_timeout", aggregator::api::grpc_timeout),
];

/// The target of a name, such as `core/key`.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}
