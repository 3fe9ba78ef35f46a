//! The native filter, a dynamic module, whatever filter the other scenarios run with. With `WEIR_FILTER=native` all of them run with it.

use std::path::Path;

use serde_json::{Value, json};
use weir_envoy::http::{Connection, Request, Response};
use weir_envoy::load::{self, LoadPlan};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Reload, Weir, binaries, wait};

use super::common::{SOON, STALL, config, get_as, rule, sound, total_in, vm_reloads, with};

/// What the native filter calls in Envoy.
const CALLBACKS: &[u8] = b"envoy_dynamic_module_callback_";

fn native(config: &Value) -> Filter {
    Filter::Weir(Weir::new(binaries::native_filter().unwrap(), config.clone()))
}

/// An Envoy with the native filter, all of whose workers know their region.
async fn start(aggregator: &Aggregator, options: EnvoyOptions, config: &Value) -> Envoy {
    let (workers, aggregator_ports) = (u64::from(options.concurrency), vec![aggregator.grpc_port()]);
    let options = EnvoyOptions { filter: native(config), aggregator_ports, ..options };
    let envoy = Envoy::start(options).await.unwrap();
    settled(&envoy, workers).await;
    envoy
}

async fn settled(envoy: &Envoy, workers: u64) {
    envoy.wait_stat("wasmcustom.weir_streams_settled", SOON, |streams| streams == workers).await.unwrap();
}

/// The names in a program or library that begin with `prefix`.
fn names(file: &Path, prefix: &[u8]) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut names: Vec<Vec<u8>> =
        bytes.split(|byte| *byte == 0).filter(|name| name.starts_with(prefix)).map(<[u8]>::to_vec).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn envoy_has_all_functions_that_the_module_calls() {
    let module = names(&binaries::native_filter().unwrap(), CALLBACKS);
    assert!(module.len() > 30, "{}", module.len());
    let envoy = names(&binaries::envoy().unwrap(), CALLBACKS);
    let missing: Vec<_> = module.iter().filter(|name| envoy.binary_search(name).is_err()).collect();
    let missing: Vec<_> = missing.into_iter().map(|name| String::from_utf8_lossy(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_limit_holds_for_workers_envoys_and_reloads() {
    const LIMIT: u64 = 100;
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let limited = |more: Value| with(config(&[rule("r", LIMIT)]), more);
    let options = || EnvoyOptions { concurrency: 2, reloadable: true, ..EnvoyOptions::default() };
    let mut one = start(&aggregator, options(), &limited(json!({}))).await;
    let plan = LoadPlan::new(one.address(), 24, 400, ("x-key", "a"));
    let report = load::run(plan).await.unwrap();
    assert_eq!((report.count(200), report.count(429)), (LIMIT, 300), "{report:?}");
    let counted = async || total_in(&aggregator, "r", "a").await == LIMIT;
    wait::until("the region has counted it", SOON, counted).await.unwrap();
    // Another Envoy, and a configuration that replaces the first one.
    let other = start(&aggregator, options(), &limited(json!({}))).await;
    assert_eq!(other.send(get_as("a")).await.unwrap().status, 429);
    let changed = limited(json!({ "responses": { "ietf_headers": true } }));
    assert_eq!(one.reload(native(&changed)).await.unwrap(), Reload::Accepted);
    let answer = one.send(get_as("a")).await.unwrap();
    assert_eq!((answer.status, answer.header("ratelimit").is_some()), (429, true));
    assert_eq!(one.reload(native(&json!({ "rules": [] }))).await.unwrap(), Reload::Rejected);
    settled(&one, 2).await;
    for envoy in [&one, &other] {
        sound_but_for_rejected(envoy).await;
    }
}

async fn sound_but_for_rejected(envoy: &Envoy) {
    assert_eq!(vm_reloads(envoy).await, 0, "{}", envoy.log().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_decides_without_an_aggregator_and_reports_afterwards() {
    let mut aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let envoy = start(&aggregator, EnvoyOptions::default(), &config(&[rule("r", 10)])).await;
    aggregator.process().kill().unwrap();
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(envoy.send(get_as("a")).await.unwrap().status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
    aggregator.restart().await.unwrap();
    let counted = async || total_in(&aggregator, "r", "a").await == 10;
    wait::until("the region has counted it", SOON, counted).await.unwrap();
    sound(&envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_costs_nothing_but_its_worker_s_memory() {
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let config = with(config(&[rule("r", 3)]), json!({ "test_faults": true }));
    let envoy = start(&aggregator, EnvoyOptions::default(), &config).await;
    assert_eq!(envoy.send(get_as("a")).await.unwrap().status, 200);
    let broken = envoy.send(get_as("a").header("x-weir-fault", "panic")).await.unwrap();
    assert_eq!(broken.status, 200, "it passes");
    let panics = |panics: u64| panics == 1;
    envoy.wait_stat("wasmcustom.weir_panics_total", SOON, panics).await.unwrap();
    settled(&envoy, 1).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(envoy.send(get_as("a")).await.unwrap().status);
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_envoy_does_not_pass_to_modules_is_refused() {
    let claim =
        json!({ "name": "r", "identifier": { "jwt_claim": { "claim": "sub" } }, "limit": 1, "window": "1m" });
    let options = EnvoyOptions { filter: native(&config(&[claim])), ..EnvoyOptions::default() };
    let error = Envoy::validate(options).unwrap_err().to_string();
    assert!(error.contains("rules[0].identifier.jwt_claim: the native filter cannot read claims"), "{error}");
}

/// A rule for each part of a decision that the edge has a hand in.
fn mixed(workspace: &str) -> Value {
    let at = |path: &str, more: Value| with(more, json!({ "match": { "path": { "prefix": path } } }));
    let rules = [
        with(rule("key", 40), json!({ "match": { "path": { "prefix": "/a" } } })),
        at(
            "/b",
            with(
                rule("method", 15),
                json!({ "identifier": [{ "header": "x-key" }, { "header": ":method" }], "on_missing_identifier": "deny" }),
            ),
        ),
        at(
            "/c",
            with(
                rule("cookie", 20),
                json!({ "identifier": { "cookie": "session" }, "on_ambiguous_identifier": "deny" }),
            ),
        ),
        at("/d", with(rule("shadow", 5), json!({ "shadow_mode": true }))),
        at(
            "/e",
            with(
                rule("own", 5),
                json!({ "response": { "status": 503, "body": "wait {retry_after}", "headers": "hidden" } }),
            ),
        ),
        at(
            "/f",
            with(rule("cost", 100), json!({ "cost": { "request": { "header": "x-cost" }, "max": 20 } })),
        ),
        with(rule("all", 1_000_000), json!({ "identifier": { "client_address": {} } })),
    ];
    let more = json!({ "workspace": workspace, "responses": { "ietf_headers": true, "problem_json": true, "headers_on_allowed": true } });
    with(config(&rules), more)
}

/// The request of a number, the same for both.
fn request(number: u64) -> Request {
    // Bits of a number that is far from the numbers beside it.
    let bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let path = ["/a/x", "/b?q=1", "/c", "/d/../d", "/e", "/f", "/g"][usize::try_from(bits % 7).unwrap()];
    let key = format!("key-{}", bits / 7 % 29);
    let mut request = Request::get(path);
    if (bits / 512).is_multiple_of(3) {
        request.method = "DELETE".parse().unwrap();
    }
    if !(bits / 1_024).is_multiple_of(11) {
        request = request.header("x-key", &key);
    }
    if (bits / 2_048).is_multiple_of(13) {
        request = request.header("content-type", "application/grpc");
    }
    if (bits / 4_096).is_multiple_of(2) {
        request = request.header("cookie", format!("session={key}; other=1"));
    }
    if (bits / 8_192).is_multiple_of(17) {
        request = request.header("cookie", "session=another");
    }
    let cost = ["1", "7", "0", "many", ""][usize::try_from(bits / 16_384 % 5).unwrap()];
    request.header("x-cost", cost)
}

/// A response without what differs in time, and the times in it.
fn facts(response: &Response) -> (String, Vec<u64>) {
    let mut times = Vec::new();
    let mut lines = Vec::new();
    for (name, value) in &response.headers {
        let value = value.to_str().unwrap();
        let value = match name.as_str() {
            "date" => continue,
            "retry-after" | "x-ratelimit-reset" => {
                times.push(value.parse().unwrap());
                String::new()
            }
            "ratelimit" => without_times(value, &mut times),
            _ => value.to_owned(),
        };
        lines.push(format!("{name}: {value}"));
    }
    lines.sort();
    let body = response.text();
    let body = if body.starts_with("wait ") { "wait" } else { &body };
    (format!("{}\n{}\n{body}", response.status, lines.join("\n")), times)
}

/// A header `ratelimit` without the seconds that follow each `t=`.
fn without_times(value: &str, times: &mut Vec<u64>) -> String {
    let mut parts = value.split("t=");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
        times.push(part[..end].parse().unwrap());
        text.push_str(&part[end..]);
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_filters_answer_ten_thousand_requests_in_the_same_way() {
    const REQUESTS: u64 = 10_000;
    const CONNECTIONS: u64 = 8;
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let of = |module, workspace| Filter::Weir(Weir::new(module, mixed(workspace)));
    let aggregator_ports = vec![aggregator.grpc_port()];
    let options = |filter| EnvoyOptions {
        filter,
        aggregator_ports: aggregator_ports.clone(),
        ..EnvoyOptions::default()
    };
    let wasm = Envoy::start(options(of(binaries::wasm_filter().unwrap(), "wasm"))).await.unwrap();
    let native = Envoy::start(options(of(binaries::native_filter().unwrap(), "native"))).await.unwrap();
    settled(&wasm, 2).await;
    settled(&native, 1).await;
    let mut counts = std::collections::BTreeMap::<u16, u64>::new();
    let mut connections =
        [Connection::open(wasm.address()).await.unwrap(), Connection::open(native.address()).await.unwrap()];
    for number in 0..REQUESTS {
        for (connection, envoy) in connections.iter_mut().zip([&wasm, &native]) {
            if number % (REQUESTS / CONNECTIONS) == 0 || !connection.is_open() {
                *connection = Connection::open(envoy.address()).await.unwrap();
            }
        }
        let [of_wasm, of_native] = &mut connections;
        let (of_wasm, of_native) =
            tokio::join!(of_wasm.send(request(number)), of_native.send(request(number)));
        let (of_wasm, of_native) = (of_wasm.unwrap(), of_native.unwrap());
        let ((expected, before), (found, after)) = (facts(&of_wasm), facts(&of_native));
        assert_eq!(found, expected, "request {number}: {:?}", request(number));
        let near = before.iter().zip(&after).all(|(one, other)| one.abs_diff(*other) <= STALL.as_secs());
        assert!(near && before.len() == after.len(), "request {number}: {before:?} {after:?}");
        *counts.entry(of_native.status).or_default() += 1;
    }
    for status in [200, 429, 503] {
        assert!(counts.get(&status).is_some_and(|count| *count > 50), "{counts:?}");
    }
    sound(&native).await;
}

#[test]
fn scenarios_that_are_left_out_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_to_string(folder.join("without-native.txt")).unwrap();
    for line in listed.lines().filter(|line| !line.starts_with('#')) {
        let (name, reason) = line.split_once("    ").unwrap_or_else(|| panic!("without a reason: {line}"));
        let mut parts = name.split("::");
        let (root, file) = (parts.next(), parts.next().unwrap_or_default());
        let text = std::fs::read_to_string(folder.join(format!("it/scenarios/{file}.rs"))).unwrap();
        let test = parts.next().unwrap_or_default();
        let exists = test.is_empty() || text.contains(&format!("async fn {test}("));
        assert!(root == Some("scenarios") && exists && !reason.trim().is_empty(), "{line}");
    }
}
