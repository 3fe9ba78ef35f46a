//! Rules by fields of the body, which filters of Envoy parse and leave in metadata: what clients evade or invent, and filters that stand
//! where the metadata is not there yet.
//!
//! `chain` checks the filters around a plugin, `answers` what they write of responses, and `locks` whether rules by the body leave requests
//! without one to others. `parsers` knows the filters and what they write.

mod answers;
mod chain;
mod locks;
mod parsers;

pub use chain::Chain;

use super::order::one_or_list;
use parsers::{is_known, namespace_of};
use serde_json::Value;
use weir_core::rules::{Config, Missing};

/// Warns of rules by a body's values that clients evade or invent. `namespaces` are those that are known to be of a body beside Envoy's own.
pub fn warnings(config: &Config, json: &Value, namespaces: &[&str]) -> Vec<String> {
    let is_of_body = |namespace: &str| is_known(namespace) || namespaces.contains(&namespace);
    let mut found = Vec::new();
    for (at, rule) in config.rules.iter().enumerate().filter(|(_, rule)| !rule.shadow) {
        let parts = rule.metadata_parts();
        let parts = parts.filter(|part| std::str::from_utf8(part.namespace).is_ok_and(is_of_body));
        for part in parts {
            let key = String::from_utf8_lossy(part.key);
            if !part.is_listed {
                found.push(format!(
                    "warning: rules[{at}].identifier: a client writes {key} into its body, and each value that it invents has a count of its own; \
                     list the values in one_of"
                ));
            }
            if part.skips_unlisted {
                found.push(format!(
                    "warning: rules[{at}].identifier: on_unlisted: skip allows every request with a {key} that is not listed; use shared or deny"
                ));
            }
            if rule.missing == Missing::Skip {
                found.push(format!(
                    "warning: rules[{at}].on_missing_identifier: skip allows every request whose body has no {key} or is not parsed, such as a \
                     batch, a large or a compressed one; use deny"
                ));
            }
        }
    }
    found.extend(chosen(json, is_of_body));
    found.extend(locks::evaded(config, json, is_of_body));
    found
}

/// Warns of limits, plans and exceptions that a client chooses by its body.
fn chosen(json: &Value, is_of_body: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (at, rule) in json["rules"].as_array().into_iter().flatten().enumerate() {
        let of_body = |metadata: &Value| namespace_of(metadata).is_some_and(&is_of_body);
        let limit = &rule["limit"];
        for (field, metadata) in [("limit.by", &limit["by"]["metadata"]), ("limit", &limit["metadata"])] {
            if of_body(metadata) {
                found.push(format!(
                    "warning: rules[{at}].{field}.metadata: a client chooses its limit by what it writes into its body; use a claim, or metadata \
                     of an authorisation"
                ));
            }
        }
        for (number, except) in rule["match"]["except"].as_array().into_iter().flatten().enumerate() {
            if one_or_list(&except["metadata"]).iter().any(of_body) {
                found.push(format!(
                    "warning: rules[{at}].match.except[{number}]: a client chooses by its body whether the rule applies; make an exception of \
                     what it cannot choose"
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
