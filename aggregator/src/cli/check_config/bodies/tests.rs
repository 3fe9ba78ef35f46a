//! Warnings of rules by the body, and of the filters around them.

use super::parsers::*;
use super::*;
use serde_json::json;
use weir_core::rules::PluginConfig;

const BY_TOOL: &str = r#"{"metadata": {"filter": "envoy.filters.http.mcp", "key": ["params", "name"]}}"#;

fn config(rules: &Value) -> Config {
    let rules = rules.as_array().unwrap().iter().enumerate().map(|(at, rule)| {
        let mut rule = rule.clone();
        let base =
            json!({ "name": format!("r{at}"), "limit": 9, "window": "1m", "identifier": { "header": "a" } });
        for (name, value) in base.as_object().unwrap() {
            rule.as_object_mut().unwrap().entry(name.clone()).or_insert(value.clone());
        }
        rule
    });
    let text = json!({ "aggregator": { "cluster": "c" }, "rules": rules.collect::<Vec<_>>() }).to_string();
    Config::parse(text.as_bytes()).unwrap()
}

/// Whether these rules are warned of so, and of nothing else.
fn check(rules: &Value, namespaces: &[&str], parts: &[&str]) {
    let found = warnings(&config(rules), &json!({ "rules": rules }), namespaces);
    assert_eq!(found.len(), parts.len(), "{rules} {found:?}");
    for (warning, part) in found.iter().zip(parts) {
        assert!(warning.starts_with("warning: rules[") && warning.contains(part), "{warning}");
    }
}

#[test]
fn rules_that_a_body_evades_are_warned_of() {
    let listed = |more: Value| {
        let mut part: Value = serde_json::from_str(BY_TOOL).unwrap();
        part["one_of"] = json!(["search"]);
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        part
    };
    let by_tool: Value = serde_json::from_str(BY_TOOL).unwrap();
    let own = json!({ "metadata": { "filter": "acme", "key": "model" } });
    let call = json!({ "metadata": [{ "filter": "envoy.filters.http.mcp", "key": "method", "exact": "tools/call" }] });
    let none =
        json!({ "metadata": [{ "filter": "envoy.filters.http.mcp", "key": "method", "present": false }] });
    let of_method = |more: Value| {
        let mut condition = json!({ "filter": "envoy.filters.http.mcp", "key": "method" });
        condition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        condition
    };
    let not = of_method(json!({ "exact": "tools/call", "invert": true }));
    let not_call = json!({ "metadata": [not] });
    let other = json!({ "metadata": [not, of_method(json!({ "present": true }))] });
    for (rules, namespaces, parts) in [
        (
            json!([{ "identifier": by_tool, "on_missing_identifier": "deny" }]),
            &[][..],
            &["list the values in one_of"][..],
        ),
        (json!([{ "identifier": listed(json!({})), "on_missing_identifier": "deny" }]), &[], &[]),
        (
            json!([{ "identifier": listed(json!({})), "on_missing_identifier": "skip" }]),
            &[],
            &["rules[0].on_missing_identifier: skip"],
        ),
        (json!([{ "identifier": by_tool, "on_missing_identifier": "skip", "shadow_mode": true }]), &[], &[]),
        (
            json!([{ "identifier": listed(json!({ "on_unlisted": "skip" })) }]),
            &[],
            &["on_unlisted: skip allows every request with a name"],
        ),
        (json!([{ "identifier": own, "on_missing_identifier": "deny" }]), &[], &[]),
        (
            json!([{ "identifier": own, "on_missing_identifier": "deny" }]),
            &["acme"],
            &["a client writes model into its body"],
        ),
        (json!([{}, { "match": call }]), &[], &["rules[1].match.metadata"]),
        (json!([{ "match": call }, { "match": none }]), &[], &[]),
        (json!([{ "match": call }, { "match": other }]), &[], &["rules[0].match.metadata"]),
        (json!([{ "match": call }, { "match": not_call }]), &[], &[]),
    ] {
        check(&rules, namespaces, parts);
    }
}

/// Conditions on the method of a call, and on there being none.
fn of_method(test: Value) -> Value {
    json!({ "metadata": [both(&json!({ "filter": "envoy.filters.http.mcp", "key": "method" }), test)] })
}

fn both(conditions: &Value, more: Value) -> Value {
    let mut conditions = conditions.clone();
    conditions.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    conditions
}

fn with(conditions: &Value, more: Value) -> Value {
    both(&json!({ "match": conditions }), more)
}

/// What the way around the first rule leaves open.
const EVADED: &[&str] = &["rules[0].match.metadata"];

#[test]
fn a_rule_is_a_lock_only_for_what_it_limits() {
    let call = of_method(json!({ "exact": "tools/call" }));
    let none = of_method(json!({ "present": false }));
    let evaded = EVADED;
    let on_header = |name: &str| json!({ "headers": [{ "name": name, "present": true }] });
    for (rules, parts) in [
        (json!([{ "match": call }, with(&none, json!({ "shadow_mode": true }))]), evaded),
        (json!([{ "match": call }, with(&none, json!({ "enforce_percent": 50 }))]), evaded),
        (json!([{ "match": call }, with(&none, json!({ "limit": 10 }))]), evaded),
        (json!([{ "match": call }, with(&none, json!({ "limit": 10, "window": "2m" }))]), &[]),
        (json!([{ "match": call }, with(&none, json!({ "cost": 0 }))]), evaded),
        (json!([{ "match": call }, with(&none, json!({ "cost": 2, "limit": 18 }))]), &[]),
        (json!([{ "match": call }, with(&none, json!({ "cost": 2, "limit": 19 }))]), evaded),
        (json!([with(&call, json!({ "cost": 3 })), { "match": none }]), evaded),
        (json!([with(&call, json!({ "cost": 3 })), with(&none, json!({ "limit": 3 }))]), &[]),
        (json!([with(&call, json!({ "cost": 3 })), with(&none, json!({ "cost": 3 }))]), &[]),
        (json!([{ "match": call }, with(&none, json!({ "on_missing_identifier": "skip" }))]), evaded),
        (json!([{ "match": call }, { "match": both(&none, json!({ "methods": "GET" })) }]), evaded),
        (json!([{ "match": call }, { "match": both(&none, json!({ "methods": ["GET", "POST"] })) }]), &[]),
        (
            json!([{ "match": both(&call, json!({ "methods": ["POST", "PUT"] })) }, { "match": both(&none, json!({ "methods": "POST" })) }]),
            evaded,
        ),
        (
            json!([
                { "match": both(&call, json!({ "methods": ["POST", "PUT"] })) },
                { "match": both(&none, json!({ "methods": "POST" })) },
                { "match": both(&none, json!({ "headers": [{ "name": ":Method", "exact": "PUT" }] })) },
            ]),
            &[],
        ),
        (json!([{ "match": call }, { "match": both(&none, on_header("x-a")) }]), evaded),
        (
            json!([{ "match": both(&call, on_header("x-a")) }, { "match": both(&none, on_header("x-a")) }]),
            &[],
        ),
        (json!([{ "match": call }, { "match": both(&none, json!({ "path": { "prefix": "/a" } })) }]), evaded),
        (
            json!([{ "match": both(&call, json!({ "host": "a.com" })) }, { "match": both(&none, json!({ "host": ["a.com", "b.com"] })) }]),
            &[],
        ),
        (json!([{ "match": call }, { "match": both(&none, json!({ "host": "a.com" })) }]), evaded),
        (json!([with(&call, json!({ "shadow_mode": true }))]), &[]),
    ] {
        check(&rules, &[], parts);
    }
}

#[test]
fn plans_overrides_and_other_rules_of_a_group_open_a_lock() {
    let call = of_method(json!({ "exact": "tools/call" }));
    let none = of_method(json!({ "present": false }));
    let evaded = EVADED;
    let plans = |free: u64, paid: u64| json!({ "by": { "jwt_claim": { "claim": "plan" } }, "of": { "free": free, "paid": paid }, "default": free });
    for (rules, parts) in [
        (json!([{ "match": call }, with(&none, json!({ "limit": plans(5, 90) }))]), evaded),
        (json!([{ "match": call }, with(&none, json!({ "limit": plans(5, 9) }))]), &[]),
        (json!([with(&call, json!({ "limit": plans(5, 90) })), { "match": none }]), evaded),
        (
            json!([
                with(&call, json!({ "limit": plans(5, 90) })),
                with(&none, json!({ "limit": plans(5, 90) }))
            ]),
            &[],
        ),
        (
            json!([{ "match": call }, with(&none, json!({ "overrides": [{ "identifier": "a*", "exempt": true }] }))]),
            evaded,
        ),
        (
            json!([{ "match": call }, with(&none, json!({ "overrides": [{ "identifier": "a*", "limit": 90 }] }))]),
            evaded,
        ),
        (
            json!([{ "match": call }, with(&none, json!({ "overrides": [{ "identifier": "a*", "limit": 3 }] }))]),
            &[],
        ),
        (
            json!([with(&call, json!({ "overrides": [{ "identifier": "a", "limit": 3 }] })), { "match": none }]),
            evaded,
        ),
        (
            json!([
                with(&call, json!({ "overrides": [{ "identifier": "a", "exempt": true }] })),
                with(&none, json!({ "overrides": [{ "identifier": "a", "exempt": true }] })),
            ]),
            &[],
        ),
        (
            json!([
                { "match": call },
                with(&none, json!({ "path_group": "g" })),
                { "match": { "path": { "prefix": "/a" } }, "path_group": "g" },
            ]),
            evaded,
        ),
        (
            json!([
                { "match": both(&call, json!({ "path": { "prefix": "/a" } })), "path_group": "g" },
                { "match": both(&none, json!({ "path": { "prefix": "/a" } })), "path_group": "g" },
            ]),
            &[],
        ),
        (json!([{ "match": call }, with(&none, json!({ "cost": { "only": 401 } }))]), evaded),
    ] {
        check(&rules, &[], parts);
    }
}

fn plugin(at: usize) -> PluginConfig {
    PluginConfig {
        path: format!("static_resources.listeners[0].http_filters[{at}].typed_config.config"),
        json: String::new(),
        module: None,
        variables: Vec::new(),
        is_native: false,
    }
}

/// A list with these filters, of which `weir` is the plugin.
fn document(filters: &[Value]) -> (Value, PluginConfig) {
    let own = filters.iter().position(|filter| filter == "weir").unwrap();
    let filters: Vec<Value> = filters
        .iter()
        .map(|filter| match filter.as_str() {
            Some("weir") => json!({ "name": "weir" }),
            Some(kind) => of_type(kind, json!({})),
            None => filter.clone(),
        })
        .collect();
    (json!({ "static_resources": { "listeners": [{ "http_filters": filters }] } }), plugin(own))
}

fn of_type(kind: &str, mut config: Value) -> Value {
    config["@type"] = format!("type.googleapis.com/x.v3.{kind}").into();
    json!({ "name": kind.to_lowercase(), "typed_config": config })
}

fn to_metadata(namespace: &str) -> Value {
    let rule = json!({ "selectors": [{ "key": "model" }], "on_present": { "metadata_namespace": namespace, "key": "model" } });
    of_type(JSON, json!({ "request_rules": { "rules": [rule] } }))
}

#[test]
fn a_parser_after_the_plugin_is_an_error() {
    let part: Value = serde_json::from_str(BY_TOOL).unwrap();
    let by_tool = json!({ "rules": [{ "identifier": [{ "header": "a" }, part] }] });
    let by_model = json!({ "rules": [{ "match": { "metadata": [{ "filter": "acme", "key": "model", "exact": "a" }] } }] });
    let by_tokens = json!({ "rules": [{ "cost": { "request": { "metadata": { "typed": OF_MODELS[0], "key": "estimated_input_tokens" } } } }] });
    let rpc = json!({ "rules": [{ "response": { "format": "json_rpc" } }] });
    let weir = || json!("weir");
    for (rules, filters, late) in [
        (&by_tool, vec![json!(MCP), weir()], None),
        (
            &by_tool,
            vec![weir(), json!(MCP)],
            Some(("[1]", "mcp writes the metadata envoy.filters.http.mcp of rules[0].identifier")),
        ),
        (&by_tool, vec![json!(MCP), weir(), json!(MCP)], None),
        (&by_model, vec![weir(), to_metadata("acme")], Some(("[1]", "of rules[0].match.metadata"))),
        (&by_model, vec![to_metadata("acme"), weir()], None),
        (&by_model, vec![weir(), to_metadata("other")], None),
        (
            &by_tokens,
            vec![weir(), json!("Lua"), json!(MODELS)],
            Some(("[2]", "of rules[0].cost.request.metadata")),
        ),
        (&rpc, vec![weir(), json!(MCP)], Some(("[1]", "of rules[0].response.format"))),
    ] {
        let (document, plugin) = document(&filters);
        let found = Chain::of(&document, &plugin).unwrap().late_parsers(rules);
        assert_eq!(found.len(), usize::from(late.is_some()), "{filters:?} {found:?}");
        if let Some((place, part)) = late {
            assert_eq!(found[0].0, format!("static_resources.listeners[0].http_filters{place}"));
            assert!(found[0].1.contains(part), "{found:?}");
        }
    }
}

#[test]
fn routes_that_change_a_parser_are_warned_of() {
    let part: Value = serde_json::from_str(BY_TOOL).unwrap();
    let by_tool = json!({ "rules": [{ "identifier": part }] });
    let by_model =
        json!({ "rules": [{ "identifier": { "metadata": { "filter": "acme", "key": "model" } } }] });
    let strict = || of_type(MCP, json!({ "reject_duplicate_keys": true }));
    let off = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true });
    let other = json!({ "@type": "type.googleapis.com/x.v3.McpOverride" });
    let on = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig" });
    let json_of = |namespace: &str| to_metadata(namespace)["typed_config"].clone();
    let switched = |config: &Value| json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": config });
    for (rules, parser, setting, change) in [
        (&by_tool, strict(), json!({ "mcp": off }), Some("disables http_filters[0] (mcp)")),
        (&by_tool, strict(), json!({ "mcp": off, "weir": off }), None),
        (&by_tool, strict(), json!({ "mcp": on }), None),
        (&by_tool, strict(), json!({ "mcp": other }), Some("overrides http_filters[0]")),
        (&by_tool, strict(), json!({ "lua": off }), None),
        (&by_model, strict(), json!({ "mcp": off }), None),
        (&by_model, to_metadata("acme"), json!({ "jsontometadata": json_of("acme") }), None),
        (&by_model, to_metadata("acme"), json!({ "jsontometadata": json_of("b") }), Some("overrides")),
        (
            &by_model,
            to_metadata("acme"),
            json!({ "jsontometadata": switched(&json_of("b")) }),
            Some("overrides"),
        ),
    ] {
        let (mut document, plugin) = document(&[parser, json!("weir")]);
        let route = json!({ "match": { "prefix": "/" }, "typed_per_filter_config": setting });
        document["static_resources"]["listeners"][0]["route_config"] =
            json!({ "virtual_hosts": [{ "routes": [{ "match": {} }, route] }] });
        let found = Chain::of(&document, &plugin).unwrap().warnings(rules);
        let of_routes: Vec<_> = found.iter().filter(|one| one.contains("route_config")).collect();
        assert_eq!(of_routes.len(), usize::from(change.is_some()), "{setting} {found:?}");
        if let (Some(change), [found]) = (change, &of_routes[..]) {
            assert!(found.contains(&format!("route_config.virtual_hosts[0].routes[1] {change}")), "{found}");
        }
    }
    let off = json!({ "name": "mcp", "disabled": true, "typed_config": strict()["typed_config"] });
    let (document, plugin) = document(&[off, json!("weir")]);
    let found = Chain::of(&document, &plugin).unwrap().warnings(&by_tool);
    assert!(found[0].contains("no filter of this list writes"), "{found:?}");
}

#[test]
fn filters_that_read_a_body_otherwise_are_warned_of() {
    let part: Value = serde_json::from_str(BY_TOOL).unwrap();
    let by_tool = json!({ "rules": [{ "identifier": part }] });
    let by_model =
        json!({ "rules": [{ "identifier": { "metadata": { "filter": "acme", "key": "model" } } }] });
    let strict = || of_type(MCP, json!({ "reject_duplicate_keys": true }));
    let models = || of_type(MODELS, json!({ "response_handling": {} }));
    let off = json!({ "common_config": { "enabled": { "default_value": false } } });
    let weir = || json!("weir");
    for (rules, filters, parts) in [
        (&by_tool, vec![json!(MCP), weir()], &["set reject_duplicate_keys: true"][..]),
        (&by_tool, vec![strict(), weir()], &[]),
        (&by_tool, vec![weir()], &["no filter of this list writes the metadata envoy.filters.http.mcp"]),
        (&by_model, vec![to_metadata("acme"), weir()], &["ai_protocol_manager, has to stand in the list"]),
        (&by_model, vec![to_metadata("acme"), json!(MODELS), weir()], &[]),
        (&by_model, vec![weir()], &[]),
        (
            &by_model,
            vec![models(), json!(chain::DECOMPRESSOR), weir()],
            &["http_filters[1] (decompressor) decompresses responses"],
        ),
        (&by_model, vec![json!(chain::DECOMPRESSOR), models(), weir()], &[]),
        (&by_model, vec![json!(MODELS), json!(chain::DECOMPRESSOR), weir()], &[]),
        (
            &by_model,
            vec![models(), of_type(chain::DECOMPRESSOR, json!({ "response_direction_config": off })), weir()],
            &[],
        ),
    ] {
        let (document, plugin) = document(&filters);
        let found = Chain::of(&document, &plugin).unwrap().warnings(rules);
        assert_eq!(found.len(), parts.len(), "{filters:?} {found:?}");
        assert!(found.iter().zip(parts).all(|(warning, part)| warning.contains(part)), "{found:?}");
    }
}

#[test]
fn limits_and_exceptions_by_the_body_are_warned_of() {
    let of = |filter: &str| json!({ "metadata": { "filter": filter, "key": "plan" } });
    let by = |filter: &str| json!({ "by": of(filter), "of": { "free": 1 }, "default": 1 });
    let stated = json!({ "metadata": { "filter": OF_JSON, "key": "limit" }, "default": 1, "max": 5 });
    let except = |filter: &str| {
        json!([{ "match": { "except": [
            { "methods": "GET" },
            { "metadata": [{ "filter": filter, "key": "debug", "exact": "1" }] },
        ] } }])
    };
    for (rules, parts) in [
        (json!([{ "limit": by(OF_JSON) }]), &["rules[0].limit.by.metadata: a client chooses its limit"][..]),
        (json!([{ "limit": by("acme") }]), &["rules[0].limit.by.metadata"]),
        (json!([{ "limit": by("envoy.filters.http.ext_authz") }]), &[]),
        (json!([{ "limit": stated }]), &["rules[0].limit.metadata: a client chooses its limit"]),
        (except(OF_MCP), &["rules[0].match.except[1]: a client chooses by its body"]),
        (except("envoy.filters.http.ext_authz"), &[]),
    ] {
        check(&rules, &["acme"], parts);
    }
}

#[test]
fn costs_by_answers_that_no_filter_reads_are_warned_of() {
    let by_use = |source: Value| json!({ "rules": [{ "cost": { "usage": source, "max": 9 } }] });
    let when = |filter: &str| {
        let line = json!({ "metadata": { "filter": filter, "key": "k", "present": true }, "cost": 1 });
        json!({ "rules": [{ "cost": { "when": [{ "status": 500, "cost": 0 }, line] } }] })
    };
    let models = || of_type(MODELS, json!({ "response_handling": { "token_usage": {} } }));
    let blind = || of_type(MODELS, json!({ "request_handling": {} }));
    let events = |namespace: &str| {
        let rule = json!({ "rule": { "selectors": [{ "key": "usage" }], "on_present": { "metadata_namespace": namespace, "key": "k" } } });
        of_type("SseToMetadata", json!({ "response_rules": { "content_parser": { "rules": [rule] } } }))
    };
    let weir = || json!("weir");
    let own = json!({ "metadata": { "filter": "acme", "total": "t" } });
    for (rules, filters, part) in [
        (by_use(json!("envoy")), vec![models(), weir()], None),
        (
            by_use(json!("envoy")),
            vec![weir()],
            Some("cost.usage: no filter of this list writes the metadata envoy.ai.token_usage"),
        ),
        (by_use(json!("envoy")), vec![blind(), weir()], Some("with response_handling.token_usage")),
        (by_use(json!("envoy")), vec![json!("ExternalProcessor"), weir()], Some("envoy.ai.token_usage")),
        (by_use(json!("envoy")), vec![weir(), models()], Some("cost.reserve: requests pass http_filters[1]")),
        (by_use(json!("envoy")), vec![models(), weir(), models()], None),
        (by_use(json!("ai_gateway")), vec![weir()], Some("the metadata io.envoy.ai_gateway")),
        (by_use(json!("ai_gateway")), vec![weir(), json!("ExternalProcessor")], None),
        (by_use(own.clone()), vec![weir()], Some("the metadata acme")),
        (by_use(own.clone()), vec![weir(), events("acme")], None),
        (by_use(own), vec![weir(), events("other")], Some("the metadata acme")),
        (when("acme"), vec![weir()], Some("rules[0].cost.when[1].metadata: no filter")),
        (when("acme"), vec![weir(), events("acme")], None),
        (when(OF_MCP), vec![of_type(MCP, json!({ "reject_duplicate_keys": true })), weir()], None),
        (json!({ "rules": [{ "cost": 1 }] }), vec![weir()], None),
    ] {
        let (document, plugin) = document(&filters);
        let found = Chain::of(&document, &plugin).unwrap().warnings(&rules);
        assert_eq!(found.len(), usize::from(part.is_some()), "{rules} {filters:?} {found:?}");
        assert!(found.iter().all(|one| one.contains(part.unwrap_or_default())), "{found:?}");
    }
}
