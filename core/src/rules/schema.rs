//! The JSON Schema of the configuration, for editors.
//!
//! Names of fields, words, ranges and lengths are the tables that the parser reads with. A configuration that the parser
//! accepts is valid by the schema. The reverse does not hold for what a schema cannot express: regular expressions,
//! paths, networks, patterns, templates, the order of two values, repeated names. Lengths are in bytes in the parser and
//! in characters here, which are never more.

use super::config::{self, RULES_MAX, Token};
use super::describe::{
    DECIMAL, any_of, boolean, duration, extend, header_name, integer, list, name, number_text, object,
    one_of, one_or_list, required_each, secret, text, visible, words,
};
use super::identifier::{PARTS_MAX, sources};
use super::matcher::text::TEXT_BYTES_MAX;
use super::request::client_address::TRUSTED_PROXIES_MAX;
use super::request::host::HOST_BYTES_MAX;
use super::request::property::{self, KEY_BYTES_MAX};
use super::rule::algorithm::{self, AlgorithmKind};
use super::rule::{
    self, Ambiguous, Missing, OnFailure, UnknownKey, ban, carried, cost, json_rpc, overrides, plans,
    response, share,
};
use super::secret::{SecretKey, VARIABLE_BYTES_MAX};
use super::{addresses, matcher};
use crate::fields::Span;
use crate::model::exact::MAX_LOG_LIMIT;
use alloc::string::ToString;
use alloc::vec::Vec;
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
        "responses" => responses(),
        "client_networks" => client_networks(),
        "exempt" => list(conditions(&matcher::EXCEPTION_FIELDS), 1..=config::EXEMPT_MAX),
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

fn responses() -> Value {
    object(&config::RESPONSES_FIELDS, &[], |name| match name {
        "reset" => words(&config::RESET),
        "names" => object(&config::NAMES_FIELDS, &[], |_| header_name()),
        _ => boolean(),
    })
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
        "name" | "namespace" | "path_group" => self::name(),
        "match" => conditions(&matcher::FIELDS),
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
            "if": is(AlgorithmKind::Ledger.name()),
            "then": { "properties": of_ledger, "required": ["zone"] },
            "else": {
                "required": ["limit", "window"],
                "if": is(AlgorithmKind::Log.name()),
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
    let by_plan = object(&plans::FIELDS, &plans::FIELDS, |name| match name {
        "by" => sources::schema_of(&plans::SOURCES),
        "of" => json!({
            "type": "object",
            "minProperties": plans::PLANS.start(),
            "maxProperties": plans::PLANS.end(),
            "propertyNames": text(plans::PLAN_BYTES_MAX),
            "additionalProperties": integer(range.clone()),
        }),
        _ => integer(range.clone()),
    });
    let money = object(&[algorithm::MONEY], &[algorithm::MONEY], |_| money());
    any_of([integer(range.clone()), one_of(&carried::KINDS, carried), by_plan, money])
}

/// Dollars, or the string that Envoy's YAML reader makes of them.
fn money() -> Value {
    any_of([json!({ "type": "number", "minimum": 0 }), number_text("^[0-9.eE+-]+$")])
}

fn conditions(fields: &[&str]) -> Value {
    object(fields, &[], |name| match name {
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
        "query" => list(one_of(&matcher::value::KINDS, query_condition()), 1..=matcher::QUERIES_MAX),
        "client_network" => one_of(&matcher::network::KINDS, network_condition()),
        "except" => {
            let mut exception = conditions(&matcher::EXCEPTION_FIELDS);
            extend(&mut exception, json!({ "minProperties": 1 }));
            list(exception, 1..=matcher::EXCEPTIONS_MAX)
        }
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

fn query_condition() -> Value {
    object(&matcher::query::FIELDS, &["name"], |name| match name {
        "name" => text(matcher::query::NAME_BYTES_MAX),
        "present" | "invert" => boolean(),
        _ => text(TEXT_BYTES_MAX),
    })
}

fn network_condition() -> Value {
    object(&matcher::network::FIELDS, &[], |name| match name {
        "trusted_hops" => integer(0..=TRUSTED_PROXIES_MAX),
        _ => list(text(addresses::NETWORK_BYTES_MAX), 1..=matcher::network::NETWORKS_MAX),
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
    let header = || object(&cost::response::HEADER_FIELDS, &["header"], |_| header_name());
    let stated_in = object(&cost::request::KINDS, &[], |name| match name {
        "header" => header_name(),
        "metadata" => sources::metadata(),
        _ => unknown(),
    });
    let of_request = object(&cost::request::FIELDS, &["request", "max"], |name| match name {
        "request" => one_of(&cost::request::KINDS, stated_in.clone()),
        _ => integer(1..=u64::MAX),
    });
    let of_response = object(&cost::response::FIELDS, &["response", "reserve", "max"], |name| match name {
        "response" => header(),
        "max" => integer(1..=u64::MAX),
        "reserve" | "default" => integer(ANY),
        "hold_timeout" => duration(&cost::TIMEOUT),
        _ => unknown(),
    });
    let [unanswered, hold_timeout] = cost::when::SHORT_FIELDS;
    let of_usage = object(&cost::usage::FIELDS, &["usage"], of_usage);
    let short = |field| object(&[field, unanswered, hold_timeout], &[field], of_when);
    any_of([
        integer(ANY),
        of_request,
        of_response,
        object(&cost::when::FIELDS, &["when"], of_when),
        short(cost::when::ONLY),
        short(cost::when::REFUND),
        of_usage,
    ])
}

fn of_usage(name: &str) -> Value {
    let weights = |required: &[&str]| object(&cost::usage::KINDS, required, |_| weight());
    match name {
        "usage" => usage_source(),
        "weights" => weights(&[]),
        "models" => list(
            object(&cost::usage::MODEL_FIELDS, &cost::usage::MODEL_FIELDS, |name| match name {
                "model" => text(cost::usage::MODEL_BYTES_MAX),
                _ => weights(&[]),
            }),
            0..=cost::usage::MODELS_MAX,
        ),
        "prices" => json!({
            "type": "object", "additionalProperties": weights(&["input", "output"]), "required": ["*"],
            "maxProperties": cost::usage::MODELS_MAX,
        }),
        "reserve" => object(&cost::usage::RESERVE_FIELDS, &[], |name| match name {
            "input" => any_of([words(&cost::usage::INPUTS), integer(cost::usage::TOKENS)]),
            "output" => any_of([words(&cost::usage::OUTPUTS), integer(cost::usage::TOKENS)]),
            _ => integer(cost::usage::TOKENS),
        }),
        "max" => integer(1..=u64::MAX),
        "without_usage" | "on_disconnect" | "on_error_status" => {
            any_of([words(&cost::usage::FALLBACKS), integer(ANY)])
        }
        "hold_timeout" => duration(&cost::TIMEOUT),
        _ => unknown(),
    }
}

/// A weight, or the string that Envoy's YAML reader makes of it.
fn weight() -> Value {
    any_of([json!({ "type": "number", "minimum": 0, "maximum": 1_000_000 }), number_text(DECIMAL)])
}

fn usage_source() -> Value {
    let keys = |known: &[&str]| {
        object(known, &[], |name| match name {
            "filter" | "typed" => sources::metadata_field(name),
            _ => one_or_list(text(KEY_BYTES_MAX), property::DEPTH_MAX),
        })
    };
    let of_any: Vec<&str> = property::METADATA_KINDS.into_iter().chain(cost::source::KEYS).collect();
    let own = object(&cost::source::SOURCES, &[], |name| match name {
        "envoy" => text(KEY_BYTES_MAX),
        "ai_gateway" => keys(&cost::source::KEYS),
        _ => one_of(&property::METADATA_KINDS, keys(&of_any)),
    });
    any_of([words(&cost::source::WORDS), one_of(&cost::source::SOURCES, own)])
}

fn of_when(name: &str) -> Value {
    match name {
        "when" => list(when_line(), 1..=cost::when::LINES_MAX),
        "default" | "reserve" => integer(ANY),
        "unanswered" => any_of([words(&cost::when::UNANSWERED), integer(ANY)]),
        "hold_timeout" => duration(&cost::TIMEOUT),
        cost::when::ONLY | cost::when::REFUND => statuses(),
        _ => unknown(),
    }
}

fn statuses() -> Value {
    let text = json!({ "type": "string", "pattern": "^([1-5]xx|[1-5][0-9]{2}-[1-5][0-9]{2})$" });
    one_or_list(any_of([integer(cost::when::STATUS), text]), cost::when::STATUSES_MAX)
}

/// A line of `cost.when`.
fn when_line() -> Value {
    let header = object(&cost::response::HEADER_FIELDS, &["header"], |_| header_name());
    let mut line = object(&cost::when::LINE_FIELDS, &["cost"], |name| match name {
        "status" => statuses(),
        "grpc_status" => one_or_list(integer(cost::when::GRPC_STATUS), cost::when::STATUSES_MAX),
        "header" => {
            one_or_list(one_of(&matcher::value::KINDS, header_condition()), cost::when::CONDITIONS_MAX)
        }
        "metadata" => one_or_list(metadata_condition(), cost::when::CONDITIONS_MAX),
        "details" => visible(1..=cost::when::DETAILS_BYTES_MAX),
        "from" => words(&cost::when::From::WORDS),
        "cost" => any_of([integer(ANY), header.clone()]),
        "max" => integer(1..=u64::MAX),
        _ => unknown(),
    });
    extend(&mut line, json!({ "anyOf": required_each(cost::when::CONDITIONS) }));
    line
}

fn override_() -> Value {
    let fields = object(&overrides::FIELDS, &["identifier"], |name| match name {
        "identifier" => text(overrides::IDENTIFIER_BYTES_MAX),
        "limit" => any_of([integer(ANY), object(&[algorithm::MONEY], &[algorithm::MONEY], |_| money())]),
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
        "count" => words(&ban::Violations::WORDS),
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
    let of_format = json!({ "body": false, "content_type": false });
    extend(
        &mut schema,
        json!({
            "dependentRequired": { "content_type": ["body"], "id": ["format"] },
            "if": { "required": ["format"] },
            "then": { "properties": of_format },
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
