//! The JSON Schema of the configuration, for editors.
//!
//! Names of fields, words, ranges and lengths are the tables that the parser reads with. A configuration that the parser
//! accepts is valid by the schema. The reverse does not hold for what a schema cannot express: regular expressions,
//! paths, networks, patterns, templates, the order of two values, repeated names. Lengths are in bytes in the parser and
//! in characters here, which are never more.

use super::config::{self, RULES_MAX, Token};
use super::describe::{
    DECIMAL, any_of, boolean, duration, extend, header_name, integer, list, name, number_text, object,
    one_of, one_or_list, secret, text, visible, words,
};
use super::identifier::{PARTS_MAX, sources};
use super::matcher::text::TEXT_BYTES_MAX;
use super::request::client_address::TRUSTED_PROXIES_MAX;
use super::request::host::HOST_BYTES_MAX;
use super::request::property::{self, KEY_BYTES_MAX};
use super::rule::algorithm::{self, AlgorithmKind};
use super::rule::{
    self, Ambiguous, Missing, OnFailure, UnknownKey, ban, carried, cost, json_rpc, overrides, response, share,
};
use super::secret::{SecretKey, VARIABLE_BYTES_MAX};
use super::{addresses, matcher};
use crate::fields::Span;
use crate::model::exact::MAX_LOG_LIMIT;
use alloc::string::ToString;
use core::ops::RangeInclusive;
use serde_json::{Map, Value, json};

/// Any count.
const ANY: RangeInclusive<u64> = 0..=u64::MAX;

/// The schema of the configuration, by JSON Schema's draft 2020-12.
pub fn schema() -> Value {
    let mut schema = object(&config::FIELDS, &["aggregator", "rules"], |name| match name {
        "workspace" => self::name(),
        "aggregator" => aggregator(),
        "table" => object(&config::TABLE_FIELDS, &[], |_| integer(config::MAX_KEYS)),
        "responses" => object(&config::RESPONSES_FIELDS, &[], |_| boolean()),
        "client_networks" => client_networks(),
        "hash_key" => secret(&SecretKey::KIND.bytes),
        "hash_key_env" => visible(1..=VARIABLE_BYTES_MAX),
        "test_faults" => boolean(),
        "rules" => list(rule(), 1..=RULES_MAX),
        _ => unknown(),
    });
    extend(
        &mut schema,
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Configuration of Weir's filter for Envoy",
            "not": { "required": ["hash_key", "hash_key_env"] },
        }),
    );
    schema
}

fn aggregator() -> Value {
    let mut schema = object(&config::AGGREGATOR_FIELDS, &["cluster"], |name| match name {
        "cluster" | "authority" => visible(1..=config::CLUSTER_BYTES_MAX),
        "token" => secret(&Token::KIND.bytes),
        "token_env" => visible(1..=VARIABLE_BYTES_MAX),
        "trace" => boolean(),
        _ => unknown(),
    });
    extend(&mut schema, json!({ "not": { "required": ["token", "token_env"] } }));
    schema
}

fn client_networks() -> Value {
    object(&addresses::FIELDS, &[], |name| match name {
        "trusted_hops" => integer(0..=TRUSTED_PROXIES_MAX),
        "exempt" | "deny" => list(text(addresses::NETWORK_BYTES_MAX), 0..=addresses::NETWORKS_MAX),
        _ => unknown(),
    })
}

fn rule() -> Value {
    let mut schema = object(&rule::FIELDS, &["name", "identifier"], |name| match name {
        "name" | "namespace" => self::name(),
        "match" => conditions(),
        "identifier" => one_or_list(sources::schema(), PARTS_MAX),
        "hash" | "hard_limit" | "shadow_mode" => boolean(),
        "algorithm" => words(&AlgorithmKind::WORDS),
        "zone" => integer(algorithm::ZONES),
        "limit" => limit(ANY),
        "window" => duration(&Span::WINDOW),
        "cost" => cost(),
        "overrides" => list(override_(), 0..=overrides::OVERRIDES_MAX),
        "on_missing_identifier" => words(&Missing::WORDS),
        "on_ambiguous_identifier" => words(&Ambiguous::WORDS),
        "enforce_percent" => any_of([
            json!({ "type": "number", "minimum": 0, "maximum": share::PERCENT_MAX }),
            number_text(DECIMAL),
        ]),
        "timeout" => duration(&algorithm::EXACT_TIMEOUT),
        "on_failure" => words(&OnFailure::WORDS),
        "unknown_key" => words(&UnknownKey::WORDS),
        "ban" => ban(),
        "response" => response(),
        _ => unknown(),
    });
    let is =
        |word: &str| json!({ "properties": { "algorithm": { "const": word } }, "required": ["algorithm"] });
    let without = |names: &[&str]| -> Value {
        names.iter().map(|name| (name.to_string(), Value::Bool(false))).collect::<Map<_, _>>().into()
    };
    let mut of_log = without(&["zone", "hard_limit", "unknown_key"]);
    extend(&mut of_log, json!({ "limit": limit(0..=MAX_LOG_LIMIT) }));
    let mut of_window = without(&["zone"]);
    extend(&mut of_window, json!({ "timeout": duration(&algorithm::QUERY_TIMEOUT) }));
    let of_ledger = without(&["limit", "window", "hard_limit", "namespace", "unknown_key"]);
    extend(
        &mut schema,
        json!({
            "if": is("ledger"),
            "then": { "properties": of_ledger, "required": ["zone"] },
            "else": {
                "required": ["limit", "window"],
                "if": is("sliding_log"),
                "then": { "properties": of_log },
                "else": { "properties": of_window },
            },
        }),
    );
    schema
}

/// The limit of a rule: a number, or where a request carries it.
fn limit(range: RangeInclusive<u64>) -> Value {
    let carried = object(&carried::FIELDS, &["default", "max"], |name| match name {
        "metadata" => sources::metadata(),
        "filter_state" => text(KEY_BYTES_MAX),
        _ => integer(range.clone()),
    });
    any_of([integer(range.clone()), one_of(&carried::KINDS, carried)])
}

fn conditions() -> Value {
    object(&matcher::FIELDS, &[], |name| match name {
        "path" => one_of(
            &matcher::PATH_KINDS,
            object(&matcher::PATH_FIELDS, &[], |name| match name {
                "ignore_case" => boolean(),
                _ => text(TEXT_BYTES_MAX),
            }),
        ),
        "methods" => {
            let pattern = "^[!#$%&'*+.^_`|~0-9A-Z-]+$";
            let method =
                json!({ "type": "string", "pattern": pattern, "maxLength": matcher::METHOD_BYTES_MAX });
            one_or_list(method, matcher::METHODS_MAX)
        }
        "headers" => list(one_of(&matcher::value::KINDS, header_condition()), 1..=matcher::HEADERS_MAX),
        "metadata" => list(metadata_condition(), 1..=matcher::METADATA_MAX),
        "host" => one_or_list(visible(1..=HOST_BYTES_MAX), matcher::HOSTS_MAX),
        "route" | "virtual_host" => {
            one_of(&matcher::NAME_KINDS, object(&matcher::NAME_KINDS, &[], |_| text(TEXT_BYTES_MAX)))
        }
        _ => unknown(),
    })
}

fn header_condition() -> Value {
    object(&matcher::HEADER_FIELDS, &["name"], |name| match name {
        "name" => header_name(),
        "present" | "invert" => boolean(),
        _ => text(TEXT_BYTES_MAX),
    })
}

fn metadata_condition() -> Value {
    let condition = object(&matcher::metadata::FIELDS, &["key"], |name| match name {
        "filter" | "typed" | "key" => sources::metadata_field(name),
        "present" | "invert" => boolean(),
        _ => text(TEXT_BYTES_MAX),
    });
    let mut condition = one_of(&matcher::value::KINDS, condition);
    let [filter, typed] = property::METADATA_KINDS;
    let one_kind = json!({
        "if": { "required": [filter] },
        "then": { "not": { "required": [typed] } },
        "else": { "required": [typed] },
    });
    extend(&mut condition, one_kind);
    condition
}

fn cost() -> Value {
    let header = || object(&cost::HEADER_FIELDS, &["header"], |_| header_name());
    let stated_in = object(&cost::REQUEST_KINDS, &[], |name| match name {
        "header" => header_name(),
        "metadata" => sources::metadata(),
        _ => unknown(),
    });
    let of_request = object(&cost::REQUEST_FIELDS, &["request", "max"], |name| match name {
        "request" => one_of(&cost::REQUEST_KINDS, stated_in.clone()),
        _ => integer(1..=u64::MAX),
    });
    let of_response = object(&cost::RESPONSE_FIELDS, &["response", "reserve", "max"], |name| match name {
        "response" => header(),
        "max" => integer(1..=u64::MAX),
        "reserve" | "default" => integer(ANY),
        "hold_timeout" => duration(&cost::TIMEOUT),
        _ => unknown(),
    });
    any_of([integer(ANY), of_request, of_response])
}

fn override_() -> Value {
    let fields = object(&overrides::FIELDS, &["identifier"], |name| match name {
        "identifier" => text(overrides::IDENTIFIER_BYTES_MAX),
        "limit" => integer(ANY),
        "exempt" => json!({ "const": true }),
        _ => unknown(),
    });
    one_of(&overrides::KINDS, fields)
}

fn ban() -> Value {
    object(&ban::FIELDS, &["threshold", "window", "duration"], |name| match name {
        "threshold" => integer(ban::DENIALS),
        "window" => duration(&ban::WITHIN),
        "duration" | "max_duration" => duration(&ban::FOR),
        _ => unknown(),
    })
}

fn response() -> Value {
    let mut schema = object(&response::FIELDS, &[], |name| match name {
        "status" => any_of([json!({ "const": json_rpc::STATUS_OK }), integer(response::STATUS)]),
        "body" => text(response::BODY_BYTES_MAX),
        "content_type" => text(response::CONTENT_TYPE_BYTES_MAX),
        "headers" => words(&response::HEADERS),
        "format" => words(&json_rpc::FORMATS),
        "id" => sources::metadata(),
        _ => unknown(),
    });
    let of_json_rpc = json!({ "body": false, "content_type": false });
    extend(
        &mut schema,
        json!({
            "dependentRequired": { "content_type": ["body"], "id": ["format"] },
            "if": { "required": ["format"] },
            "then": { "properties": of_json_rpc },
            "else": { "properties": { "status": integer(response::STATUS) } },
        }),
    );
    schema
}

/// A field without a description here. A test finds it.
fn unknown() -> Value {
    json!({})
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    /// The paths of fields without a description.
    fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
        match schema {
            Value::Object(fields) if fields.is_empty() => found.push(path.to_string()),
            Value::Object(fields) => {
                for (name, child) in fields {
                    undescribed(child, &format!("{path}/{name}"), found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| undescribed(item, path, found)),
            _ => {}
        }
    }

    #[test]
    fn every_field_of_the_parser_is_described() {
        let mut found = Vec::new();
        undescribed(&schema(), "", &mut found);
        assert!(found.is_empty(), "{found:?}");
    }
}
