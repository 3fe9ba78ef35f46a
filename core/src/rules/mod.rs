//! The configuration, and the rules that match a request.
//!
//! ```text
//! JSON text ─ fields ─┬─ config: workspace, aggregator, table, responses
//!                     ├─ addresses: networks that are exempt or denied
//!                     └─ rule ─┬─ matcher: path, methods, headers, host, metadata
//!                              ├─ identifier: parts of the request (secret: those that are hashed)
//!                              ├─ algorithm: how the limit is enforced
//!                              ├─ carried: a limit that the request states, or that its plan has (plans)
//!                              ├─ overrides: identifiers with another limit
//!                              ├─ cost: constant, or from the request or its response
//!                              ├─ share: identifiers for which it is enforced
//!                              ├─ ban
//!                              └─ response: status and body of denials
//!
//! Request ─ resolve ─ addresses ─ index, then for each rule that was found: matcher → identifier → live control → overrides → cost → Match
//! ```
//!
//! [`schema`](schema()) describes the same fields, by the parser's tables of names, words and ranges, for editors.
//!
//! [`Config::parse`] turns text into a [`Config`] or returns every error in it. A `Config` is always valid:
//! [`Config::resolve`] has no error, never panics, and allocates nothing once its [`Scratch`] has grown to the size of
//! the requests. It takes time linear in the size of the request.
//!
//! This module counts nothing and decides nothing. It has no clock and makes no host calls; it reads a request through
//! the [`Request`] trait.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod config;
pub mod rule;

mod addresses;
mod describe;
mod digits;
pub mod identifier;
mod index;
mod matcher;
mod native;
pub mod parse;
mod request;
mod resolve;
mod schema;
mod secret;

#[cfg(test)]
mod testing;

pub use addresses::Addresses;
pub use config::{Aggregator, Config, Parse, Reset, Responses, Table, Token};
pub use index::MAX_SPLIT_RULES;
#[cfg(feature = "yaml")]
pub use parse::documents::{Documents, documents};
pub use parse::envoy_config::{
    PathSetting, Written, field, find_plugin_configs, path_settings, recognise, static_clusters,
    underscore_managers,
};
pub use parse::manifest::object_name;
pub use parse::plugin::PluginConfig;
pub use request::{Lines, Request};
pub use resolve::{Action, Denied, Live, Match, Matches, Scratch};
pub use rule::ban::{Ban, MAX_BAN_MS, Violations};
pub use rule::carried::{CarriedLimit, StatedLimit};
pub use rule::cost::{
    Cost, Deferral, End, Line, RequestCost, ResponseCost, Settled, Stage, Trailers, UsageCost, UsageResult,
    Used, WhenCost,
};
pub use rule::json_rpc::{JsonRpc, METADATA_PATH};
pub use rule::overrides::Override;
pub use rule::plans::Plans;
pub use rule::response::{Body, LimitHeaders, OwnResponse};
pub use rule::share::Share;
pub use rule::{Ambiguous, Missing, OnFailure, Rule, UnknownKey};
pub use schema::schema;
pub use secret::{PLACEHOLDER, STAND_IN, SecretKey, Variables, is_digest};
