//! What the order of Envoy's HTTP filters keeps from a rule. Requests pass the filters in the order of their list, responses in the
//! reverse order.

use serde_json::Value;
use weir_core::rules::{PluginConfig, field};

/// The types of filters that can write headers of requests, and those that can write headers of responses.
const REQUEST_WRITERS: [&str; 7] = [
    "Lua",
    "ExternalProcessor",
    "ExtAuthz",
    "Wasm",
    "HeaderMutation",
    "JwtAuthentication",
    "DynamicModuleFilter",
];
const RESPONSE_WRITERS: [&str; 5] =
    ["Lua", "ExternalProcessor", "Wasm", "HeaderMutation", "DynamicModuleFilter"];
/// The type of the filter that states claims.
const CLAIMS: &str = "JwtAuthentication";

/// Warns of filters of the plugin's list that may write what a rule reads, and run after the plugin.
pub fn warnings(document: &Value, plugin: &PluginConfig) -> Vec<String> {
    let config: Value = serde_json::from_str(&plugin.json).unwrap_or_default();
    let Some((filters, own)) = filters_of(document, &plugin.path) else { return unset_headers(&config) };
    let rules = config["rules"].as_array().into_iter().flatten();
    let others = |kinds: &'static [&'static str], is_late: fn(usize, usize) -> bool| {
        let late = move |(at, filter): &(usize, &Value)| is_late(*at, own) && kinds.contains(&kind(filter));
        filters
            .iter()
            .enumerate()
            .find(late)
            .map(|(at, filter)| format!("http_filters[{at}] ({})", name(filter)))
    };
    let of_requests = others(&REQUEST_WRITERS, |at, own| at > own);
    let of_responses = others(&RESPONSE_WRITERS, |at, own| at < own);
    let of_claims = others(&[CLAIMS], |at, own| at > own);
    let is_set = others(&REQUEST_WRITERS, |at, own| at < own).is_some();
    let mut found = if is_set { Vec::new() } else { unset_headers(&config) };
    for (at, rule) in rules.enumerate() {
        let header = |from: &str| rule["cost"][from]["header"].as_str();
        if let (Some(header), Some(writer)) = (header("request"), &of_requests) {
            found.push(format!(
                "warning: rules[{at}].cost.request.header: requests pass {writer} after Weir; if it writes {header}, put it before Weir"
            ));
        }
        if let (Some(header), Some(writer)) = (header("response"), &of_responses) {
            found.push(format!(
                "warning: rules[{at}].cost.response.header: responses pass {writer} after Weir; if it writes {header}, put it after Weir"
            ));
        }
        let of_plan = &rule["limit"]["by"];
        for (field, claims) in
            [("identifier", reads_claims(&rule["identifier"])), ("limit.by", reads_claims(of_plan))]
        {
            if let (true, Some(writer)) = (claims, &of_claims) {
                found.push(format!(
                    "warning: rules[{at}].{field}.jwt_claim: {writer} states claims, and requests pass it after Weir; put it before Weir"
                ));
            }
        }
    }
    found
}

/// Warns of headers that decide more than who a client is, and that no filter is known to set: a client writes them.
pub fn unset_headers(config: &Value) -> Vec<String> {
    let rules = config["rules"].as_array().into_iter().flatten().enumerate();
    let warned = rules.flat_map(|(at, rule)| {
        let of_plan = rule["limit"]["by"]["header"].as_str().map(|header| {
            format!(
                "warning: rules[{at}].limit.by.header: a client that writes {header} chooses its limit; use a claim or metadata, or have \
                 what stands before Weir set the header or remove it"
            )
        });
        of_plan.into_iter().chain(left_by_header(at, rule))
    });
    warned.chain(exempt_by_header(config)).collect()
}

/// Warns of exceptions by what a client writes.
fn left_by_header(at: usize, rule: &Value) -> Option<String> {
    let (number, what) = written_by_client(&rule["match"]["except"])?;
    Some(format!(
        "warning: rules[{at}].match.except[{number}]: a client chooses {what}, and with it whether the rule applies; make an exception of \
         what it cannot choose"
    ))
}

/// Warns of an exemption from all rules by what a client writes.
fn exempt_by_header(config: &Value) -> Option<String> {
    let (number, what) = written_by_client(&config["exempt"])?;
    Some(format!(
        "warning: exempt[{number}]: a client chooses {what}, and with it whether any rule applies; exempt what it cannot choose, such as a \
         claim, metadata or an address, or compare it with a secret"
    ))
}

/// The first of these sets of conditions that reads what a client writes.
fn written_by_client(all: &Value) -> Option<(usize, String)> {
    all.as_array()?.iter().enumerate().find_map(|(number, conditions)| {
        let headers = conditions["headers"].as_array().into_iter().flatten();
        let mut headers = headers.filter_map(|header| header["name"].as_str());
        let header = headers.find(|name| !name.starts_with(':')).map(|name| format!("header {name}"));
        let name = conditions["query"][0]["name"].as_str();
        Some((number, header.or_else(|| name.map(|name| format!("query parameter {name}")))?))
    })
}

fn reads_claims(identifier: &Value) -> bool {
    one_or_list(identifier).iter().any(|part| part.get("jwt_claim").is_some())
}

/// The values of a field that takes one or a list.
pub(super) fn one_or_list(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// The path of the list of HTTP filters that has the plugin, and what follows there.
pub(super) fn list_of(path: &str) -> Option<(&str, &str)> {
    let ends = ["http_filters[", "httpFilters["].into_iter();
    let end = ends.filter_map(|name| Some(path.rfind(name)? + name.len())).max()?;
    let (list, rest) = path.split_at_checked(end)?;
    Some((list.strip_suffix('[')?, rest))
}

/// That list, and the plugin's place there.
pub(super) fn filters_of<'a>(document: &'a Value, path: &str) -> Option<(&'a Vec<Value>, usize)> {
    let (list, rest) = list_of(path)?;
    Some((value_at(document, list)?.as_array()?, rest.split_once(']')?.0.parse().ok()?))
}

/// What contains that list: a connection manager.
pub(super) fn manager_of<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let (manager, _) = list_of(path)?.0.rsplit_once('.')?;
    value_at(document, manager)
}

/// The value at a path such as `a.b[0].c`; `None` if a name in it has a dot.
pub(super) fn value_at<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let mut steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    steps.try_fold(document, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        other => other.get(step),
    })
}

/// The last part of the type of a filter's configuration.
pub(super) fn kind(filter: &Value) -> &str {
    let config = field(filter, "typed_config", "typedConfig");
    let kind = config.and_then(|config| config.get("@type")).and_then(Value::as_str).unwrap_or_default();
    let inner = config.and_then(|config| field(config, "type_url", "typeUrl"));
    let kind = inner.and_then(Value::as_str).filter(|_| kind.ends_with(".TypedStruct")).unwrap_or(kind);
    kind.rsplit('.').next().unwrap_or(kind)
}

pub(super) fn name(filter: &Value) -> &str {
    filter.get("name").and_then(Value::as_str).unwrap_or("without a name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn warned(rule: &Value, before: &[&str], after: &[&str]) -> Vec<String> {
        let filter = |kind: &&str| json!({"name": kind.to_lowercase(), "typed_config": {"@type": format!("type.googleapis.com/x.v3.{kind}")}});
        let filters: Vec<Value> =
            before.iter().map(filter).chain([json!({})]).chain(after.iter().map(filter)).collect();
        let document = json!({"static_resources": {"listeners": [{"http_filters": filters}]}});
        let plugin = PluginConfig {
            path: format!("static_resources.listeners[0].http_filters[{}].typed_config.config", before.len()),
            json: json!({"rules": [rule]}).to_string(),
            module: None,
            variables: Vec::new(),
            is_native: false,
        };
        warnings(&document, &plugin)
    }

    #[test]
    fn an_exemption_by_what_a_client_chooses_is_named() {
        let exempt = |conditions: Value| unset_headers(&json!({"exempt": conditions, "rules": []}));
        let by_metadata =
            json!([{"metadata": [{"filter": "f", "key": "k", "exact": "a"}]}, {"path": {"exact": "/"}}]);
        assert_eq!(exempt(by_metadata), Vec::<String>::new());
        let by_header =
            json!([{"path": {"exact": "/"}}, {"headers": [{"name": "x-debug", "present": true}]}]);
        let found = exempt(by_header);
        assert!(
            found.len() == 1 && found[0].starts_with("warning: exempt[1]: a client chooses header x-debug"),
            "{found:?}"
        );
    }

    #[test]
    fn a_filter_that_runs_too_late_is_named() {
        let request = json!({"cost": {"request": {"header": "x-cost"}, "max": 9}});
        let response = json!({"cost": {"response": {"header": "x-used"}, "reserve": 1, "max": 9}});
        let claim = json!({"identifier": [{"header": "a"}, {"jwt_claim": {"claim": "sub"}}]});
        let plan = json!({"limit": {"by": {"jwt_claim": {"claim": "plan"}}}});
        let header = json!({"limit": {"by": {"header": "x-plan"}}});
        let excepts = |except: Value| json!({"match": {"except": except}});
        let except =
            excepts(json!([{"methods": "GET"}, {"headers": [{"name": "x-debug", "present": true}]}]));
        let by_query = excepts(json!([{"query": [{"name": "debug", "present": true}]}]));
        let by_path =
            excepts(json!([{"path": {"segments": "/a"}, "headers": [{"name": ":method", "exact": "GET"}]}]));
        for (rule, before, after, part) in [
            (
                &request,
                &["Router"][..],
                &["Lua"][..],
                Some("pass http_filters[2] (lua) after Weir; if it writes x-cost"),
            ),
            (&request, &["Lua"], &["Router"], None),
            (
                &response,
                &["Lua"],
                &["Router"],
                Some("pass http_filters[0] (lua) after Weir; if it writes x-used"),
            ),
            (&response, &["ExtAuthz"], &["Lua", "Router"], None),
            (
                &claim,
                &["Lua"],
                &["JwtAuthentication"],
                Some("http_filters[2] (jwtauthentication) states claims"),
            ),
            (&claim, &["JwtAuthentication"], &["Lua"], None),
            (&plan, &[], &["JwtAuthentication"], Some("rules[0].limit.by.jwt_claim: http_filters[1]")),
            (&plan, &["JwtAuthentication"], &[], None),
            (&header, &["Router"], &["Lua"], Some("a client that writes x-plan chooses its limit")),
            (&header, &["ExtAuthz"], &[], None),
            (&except, &["Router"], &[], Some("rules[0].match.except[1]: a client chooses header x-debug")),
            (&by_query, &[], &[], Some("rules[0].match.except[0]: a client chooses query parameter debug")),
            (&by_path, &[], &[], None),
            (&json!({"cost": 1}), &["Lua"], &["Lua"], None),
        ] {
            let found = warned(rule, before, after);
            assert_eq!(found.len(), usize::from(part.is_some()), "{found:?}");
            assert!(found.iter().all(|one| one.contains(part.unwrap_or_default())), "{found:?}");
        }
    }
}
