//! Limits of the rate-limit service: what each is, and what in their files has no effect.

use super::order::one_or_list;
use crate::api::rls::config::{MAX_FILE_BYTES, WRITTEN};
use serde_json::Value;
use std::collections::HashMap;
use weir_core::fields::yaml::{self, Dialect};

/// Most limits and most warnings that are shown.
const SHOWN: usize = 100;

/// One limit or descriptor, and where it is.
struct Found<'a> {
    /// The file if there are several, and the domain.
    place: String,
    workspace: &'a str,
    /// Keys and values from the domain on.
    way: String,
    descriptor: &'a Value,
    /// Whether another descriptor of its list has the key and a limit.
    exempts: bool,
}

/// Lines about valid files, each given by name and text: the limits, and warnings. A single file needs no name.
pub fn described(files: &[(String, String)]) -> String {
    let read: Vec<(&str, Vec<Value>)> =
        files.iter().map(|(name, text)| (name.as_str(), values(text))).collect();
    let mut found = Vec::new();
    for (name, documents) in &read {
        let file = if files.len() > 1 { format!("{name}: ") } else { String::new() };
        for document in documents {
            let domain = text(document, "domain");
            let workspace = document["workspace"].as_str().unwrap_or("default");
            collect(document, &format!("{file}{domain}"), workspace, "", &mut found);
        }
    }
    let limits = found.iter().flat_map(lines).take(SHOWN);
    let lines = limits.chain(warnings(&found).into_iter().take(SHOWN));
    lines.map(|line| format!("\n  {line}")).collect()
}

fn values(text: &str) -> Vec<Value> {
    if text.len() > MAX_FILE_BYTES {
        return Vec::new();
    }
    let read = yaml::documents(text.as_bytes(), Dialect::Written(WRITTEN)).unwrap_or_default();
    read.iter().map(|document| document.value.to_json()).collect()
}

fn collect<'a>(holder: &'a Value, place: &str, workspace: &'a str, above: &str, found: &mut Vec<Found<'a>>) {
    let descriptors = holder["descriptors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let limited: Vec<String> =
        descriptors.iter().filter(|one| !one["rate_limit"].is_null()).map(|one| text(one, "key")).collect();
    for descriptor in descriptors {
        let (key, value) = (text(descriptor, "key"), text(descriptor, "value"));
        let value = if value.is_empty() { value } else { format!("={value}") };
        let slash = if above.is_empty() { "" } else { "/" };
        let way = format!("{above}{slash}{key}{value}");
        collect(descriptor, place, workspace, &way, found);
        let exempts = limited.contains(&key);
        found.push(Found { place: place.to_owned(), workspace, way, descriptor, exempts });
    }
}

/// A field as a text, whatever YAML takes it for.
fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The limits of a descriptor: one, or a list.
fn limits_of(descriptor: &Value) -> impl Iterator<Item = &Value> {
    one_or_list(&descriptor["rate_limit"]).iter().filter(|limit| !limit.is_null())
}

/// One line about each limit.
fn lines(found: &Found<'_>) -> Vec<String> {
    let shadow = if found.descriptor["shadow_mode"] == true { ", in shadow mode" } else { "" };
    let line = |limit: &Value| {
        let rate = match limit["unlimited"] == true {
            true => "unlimited".to_owned(),
            false => {
                let times = text(limit, "unit_multiplier");
                let times =
                    if times.is_empty() || times == "1" { String::new() } else { format!("{times} ") };
                format!("{} per {times}{}", text(limit, "requests_per_unit"), text(limit, "unit"))
            }
        };
        format!("{}: {}: {rate}{shadow}", found.place, found.way)
    };
    limits_of(found.descriptor).map(line).collect()
}

fn warnings(found: &[Found<'_>]) -> Vec<String> {
    let mut names: HashMap<(&str, String), usize> = HashMap::new();
    for (one, limit) in found.iter().flat_map(|one| limits_of(one.descriptor).map(move |limit| (one, limit)))
    {
        let name = text(limit, "name");
        if !name.is_empty() {
            *names.entry((one.workspace, name)).or_default() += 1;
        }
    }
    let mut lines = Vec::new();
    for one in found {
        let at = format!("warning: {}: {}", one.place, one.way);
        let has_more = one.descriptor["descriptors"].as_array().is_some_and(|list| !list.is_empty());
        if limits_of(one.descriptor).next().is_none() && !has_more && !one.exempts {
            lines.push(format!("{at}: it has neither a rate_limit nor descriptors, so it limits nothing"));
        }
        for limit in limits_of(one.descriptor) {
            let name = text(limit, "name");
            if names.get(&(one.workspace, name.clone())).is_some_and(|times| *times > 1) {
                lines.push(format!(
                    "{at}: several limits have the name {name:?}, so it is the namespace of none: tokens, live control and rules of filters \
                     do not reach them by it"
                ));
            }
            for replaced in limit["replaces"].as_array().into_iter().flatten() {
                let replaced = text(replaced, "name");
                if !names.contains_key(&(one.workspace, replaced.clone())) {
                    lines.push(format!("{at}: replaces: no limit has the name {replaced:?}"));
                }
            }
        }
    }
    lines
}
