//! What is fuzzed: one function for each parser that meets bytes from outside. It may refuse them, and must not panic,
//! nor take long, nor break what it promises.
//!
//! [`TARGETS`] names them all. The fuzzer calls them through `targets/`; `tests/corpora.rs` calls them with the inputs
//! kept in `corpus/`, on the stable compiler.
//!
//! Leaves to others: running the fuzzer (`just fuzz`).
#![forbid(unsafe_code)]

mod configuration;
mod doors;
mod frames;
mod live;
mod logs;
mod requests;
mod shared_data;
mod stores;

/// A parser fed with bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("filter_config", configuration::filter_config),
    ("envoy_config", configuration::envoy_config),
    ("resolve", requests::resolve),
    ("admin_query", requests::admin_query),
    ("key", frames::key),
    ("filter_frame", frames::filter_frame),
    ("region_frame", frames::region_frame),
    ("changes", frames::changes),
    ("shared_data", shared_data::shared_data),
    ("controls", live::controls),
    ("stored_controls", live::stored_controls),
    ("redis_url", stores::redis_url),
    ("database_url", stores::database_url),
    ("column_identifier", stores::column_identifier),
    ("limit_body", doors::limit_body),
    ("limits_body", doors::limits_body),
    ("ledger_query", doors::ledger_query),
    ("tokens_file", doors::tokens_file),
    ("authorization", doors::authorization),
    ("rate_limits", doors::rate_limits),
    ("rate_limit_request", doors::rate_limit_request),
    ("grpc_timeout", doors::grpc_timeout),
    ("sliding_log", logs::sliding_log),
    ("log_answer", logs::log_answer),
    ("traceparent", requests::traceparent),
];

/// Calls the target of a name; for `targets/`.
///
/// # Panics
/// If there is no such target, or the parser breaks a promise.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(data);
}
