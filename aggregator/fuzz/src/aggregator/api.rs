//! What applications and other proxies send to the APIs, and what operators write for them.

use prost::Message;
use sha2::{Digest, Sha256};
use std::time::Duration;
use weir_aggregator::api::http::{
    CheckRequest, Costs, MAX_CHECKS, MAX_ID_BYTES, Problem, parse_batch, parse_check, parse_history,
    parse_reserve, parse_settle,
};
use weir_aggregator::api::rls::call::{Applied, applied};
use weir_aggregator::api::rls::config::{Domains, Limits};
use weir_aggregator::api::rls::service;
use weir_aggregator::api::rls::wire::{Descriptor, Entry, RateLimitRequest};
use weir_aggregator::api::rls::xds::wire::RateLimitConfig;
use weir_aggregator::api::{LimitCheck, MAX_RESERVED_CHECKS};
use weir_aggregator::auth::{MAX_HEADER_BYTES, MAX_NAME_BYTES, Presented, Tokens, Unauthorized};
use weir_aggregator::database::{MAX_BUCKET_BYTES, MAX_HISTORY_ROWS};
use weir_core::matching::canonical::MAX_IDENTIFIER_BYTES;
use weir_core::model::exact::{Algorithm, MAX_LOG_LIMIT};
use weir_core::model::key::MAX_TEXT_BYTES;
use weir_core::model::window::MAX_COUNT;

/// A token whose digest seeds of the tokens file have.
const TOKEN: &str = "weir_a";
/// Most problems in a response, and the longest of their texts.
const MAX_PROBLEMS: usize = 20;
const MAX_SENT_BYTES: usize = 1_024;

/// Every kind of descriptor.
const LIMITS: &str = r#"
domain: d
workspace: shop
descriptors:
  - {key: a, value: x, rate_limit: {unit: second, requests_per_unit: 3, name: named}}
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: named}]}
    descriptors:
      - {key: b, value: "f*/*", share_threshold: true, rate_limit: {unit: week, requests_per_unit: 1}}
      - {key: b, value: "g*", shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
      - {key: b, rate_limit: {unlimited: true}}
  - {key: several, rate_limit: [{unit: second, requests_per_unit: 2}, {unit: day, requests_per_unit: 9, name: daily}]}
  - {key: quota, quota_mode: true, metadata: {m: [1, null, {n: x}]}, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: deep, descriptors: [{key: a, descriptors: [{key: a, rate_limit: {unit: month, requests_per_unit: 4294967295}}]}]}
"#;

/// The body of `POST /v1/check`.
pub fn limit_body(data: &[u8]) {
    let request = parse_check(data);
    assert_eq!(request, parse_check(data));
    check_body(&request, 1);
}

/// The body of `POST /v1/check/batch`.
pub fn limits_body(data: &[u8]) {
    let request = parse_batch(data);
    assert_eq!(request, parse_batch(data));
    check_body(&request, MAX_CHECKS);
}

/// The body of `POST /v1/reserve`.
pub fn reserve_body(data: &[u8]) {
    let parsed = parse_reserve(data);
    assert_eq!(parsed, parse_reserve(data));
    if let Ok(reserve) = &parsed {
        assert!((1..=MAX_ID_BYTES).contains(&reserve.id.len()));
        assert!((1_000..=3_600_000).contains(&reserve.lifetime_ms));
        let is_window = |check: &LimitCheck| check.algorithm == Algorithm::Window && !check.hard_limit;
        assert!(reserve.request.checks.iter().all(is_window));
    }
    check_body(&parsed.map(|reserve| reserve.request), MAX_RESERVED_CHECKS);
}

/// The body of `POST /v1/settle`.
pub fn settle_body(data: &[u8]) {
    let parsed = parse_settle(data);
    assert_eq!(parsed, parse_settle(data));
    match parsed {
        Ok(settle) => {
            assert!((1..=MAX_ID_BYTES).contains(&settle.id.len()));
            let costs = match settle.costs {
                Costs::One(cost) => vec![cost],
                Costs::Several(costs) => costs,
            };
            assert!((1..=MAX_RESERVED_CHECKS).contains(&costs.len()));
            assert!(costs.iter().all(|cost| *cost <= MAX_COUNT));
        }
        Err(problem) => check_problem(&problem),
    }
}

fn check_body(request: &Result<CheckRequest, Problem>, most: usize) {
    let request = match request {
        Ok(request) => request,
        Err(problem) => return check_problem(problem),
    };
    assert!((1..=most).contains(&request.checks.len()));
    assert!((Duration::from_millis(1)..=Duration::from_secs(5)).contains(&request.within));
    assert!(request.workspace.as_ref().is_none_or(|text| (1..=MAX_TEXT_BYTES).contains(&text.len())));
    for check in &request.checks {
        validate_check(check);
        assert!(check.cost <= MAX_COUNT && check.limit <= MAX_COUNT);
        match check.algorithm {
            Algorithm::Log => assert!(check.limit <= MAX_LOG_LIMIT),
            Algorithm::Ledger { zone } => assert!(zone > 0),
            Algorithm::Window => {}
        }
    }
}

/// A check that a parser accepted is valid for the embedded limiter too.
fn validate_check(check: &LimitCheck) {
    assert!((1..=MAX_IDENTIFIER_BYTES).contains(&check.identifier.len()), "{check:?}");
    assert_eq!(check.validate(), Ok(()), "{check:?}");
}

fn check_problem(problem: &Problem) {
    assert!(problem.status.is_client_error());
    assert!(problem.fields.len() <= MAX_PROBLEMS);
    let texts = problem.fields.iter().flat_map(|field| [&field.field, &field.message]);
    assert!(texts.chain([&problem.message]).all(|text| text.len() <= MAX_SENT_BYTES), "{problem:?}");
}

/// The query of `GET /v1/ledger`.
pub fn ledger_query(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let query = parse_history(text);
    assert_eq!(query, parse_history(text));
    match query {
        Ok(query) => {
            assert!((1..=MAX_BUCKET_BYTES).contains(&query.bucket.len()));
            assert!((1..=MAX_HISTORY_ROWS).contains(&query.limit));
            assert!(query.zone > 0 && query.before != Some(0));
        }
        Err(problem) => check_problem(&problem),
    }
}

/// The file of tokens: who is in it has a name and one workspace.
pub fn tokens_file(data: &[u8]) {
    let header = format!("Bearer {TOKEN}");
    let caller = || {
        Tokens::parse(data)
            .map(|tokens| tokens.check(in_header(header.as_bytes())).map(|found| (*found).clone()))
    };
    let found = caller();
    assert_eq!(found, caller());
    match found {
        Ok(Ok(caller)) => {
            assert!((1..=MAX_NAME_BYTES).contains(&caller.name.len()));
            let own = caller.workspace(None).expect("a token is of one workspace");
            assert!((1..=MAX_TEXT_BYTES).contains(&own.len()));
            assert_eq!(caller.workspace(Some(own)), Some(own));
            assert_eq!(caller.workspace(Some(&[own, b"-"].concat())), None);
        }
        Ok(Err(refused)) => assert!(matches!(refused, Unauthorized::Unknown | Unauthorized::OfFilter)),
        Err(_) => {}
    }
}

fn in_header(header: &[u8]) -> Presented<'_> {
    Presented { header: Some(header), certificate: None }
}

/// An `authorization` header: one token is known, and nothing else passes for it.
pub fn authorization(data: &[u8]) {
    let digest = Sha256::digest(TOKEN);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = format!("- {{name: a, sha256: {digest}, workspace: w}}");
    let tokens = Tokens::parse(file.as_bytes()).expect("the file above is sound");
    let presented = data.split_at_checked(7).filter(|(scheme, token)| {
        let sound = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
        scheme.eq_ignore_ascii_case(b"bearer ") && sound && data.len() <= MAX_HEADER_BYTES
    });
    let expected = match presented {
        None => Err(Unauthorized::Malformed),
        Some((_, token)) if token == TOKEN.as_bytes() => Ok("a".to_owned()),
        Some(_) => Err(Unauthorized::Unknown),
    };
    assert_eq!(tokens.check(in_header(data)).map(|caller| caller.name.clone()), expected);
}

/// The rate-limit service's YAML, and what it makes of some requests.
pub fn rate_limits(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let files = [("f", text)];
    let (limits, again) = match (Limits::parse(files, Domains::Unique), Limits::parse(files, Domains::Unique))
    {
        (Ok(limits), Ok(again)) => (limits, again),
        (limits, again) => {
            let error = limits.expect_err("it is refused once").to_string();
            return assert_eq!(error, again.expect_err("it is refused once").to_string());
        }
    };
    assert_eq!(limits.len(), again.len());
    let entry = |(key, value): (&str, &str)| Entry { key: key.to_owned(), value: value.into() };
    let ways: [&[(&str, &str)]; 5] = [
        &[("a", "x")],
        &[("a", "y")],
        &[("b", "files/1")],
        &[("a", "x"), ("b", "files/1")],
        &[("a", "y"), ("a", "x"), ("b", "")],
    ];
    let descriptors = ways
        .map(|way| Descriptor { entries: way.iter().copied().map(entry).collect(), ..Descriptor::default() });
    let request =
        RateLimitRequest { domain: "d".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 };
    check_call(&limits, &again, &request);
}

/// A resource of an xDS server.
pub fn rate_limit_resource(data: &[u8]) {
    let Ok(config) = RateLimitConfig::decode(data) else { return };
    let read = || Limits::of_values([("r".to_owned(), config.clone().into_value())], Domains::Unique);
    match (read(), read()) {
        (Ok(limits), Ok(again)) => {
            assert_eq!((limits.len(), again.len()), (1, 1));
            let entries = vec![Entry { key: "k".to_owned(), value: b"v".to_vec() }];
            let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
            let request = RateLimitRequest { domain: config.domain, descriptors, hits_addend: 0 };
            check_call(&limits, &again, &request);
        }
        (limits, again) => {
            let error = limits.expect_err("it is refused once").to_string();
            assert_eq!(error, again.expect_err("it is refused once").to_string());
        }
    }
}

/// A call of the rate-limit service.
pub fn rate_limit_request(data: &[u8]) {
    let Ok(request) = RateLimitRequest::decode(data) else { return };
    let limits = || Limits::parse([("f", LIMITS)], Domains::Unique).expect("the limits above are sound");
    check_call(&limits(), &limits(), &request);
}

fn check_call(limits: &Limits, again: &Limits, request: &RateLimitRequest) {
    let found = applied(limits, request);
    assert_eq!(found, applied(again, request));
    let Ok(found) = found else { return };
    assert_eq!(found.all.len(), found.descriptors.len());
    assert!(found.descriptors.is_sorted());
    let mut named = found.descriptors.clone();
    named.dedup();
    assert_eq!(named, (0..request.descriptors.len()).collect::<Vec<_>>());
    for (applied, at) in found.all.iter().zip(&found.descriptors) {
        let descriptor = &request.descriptors[*at];
        if let Applied::Limit { check, part, .. } = applied {
            validate_check(check);
            assert_eq!(part.refund, descriptor.is_negative_hits);
            assert!(check.limit <= u64::from(u32::MAX));
            let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
            assert_eq!(check.cost, hits);
        }
    }
}

/// The value of `grpc-timeout`: one to eight digits and a unit, and nothing else.
pub fn grpc_timeout(data: &[u8]) {
    let unit_ns: Option<u128> = match data.last() {
        Some(b'H') => Some(3_600_000_000_000),
        Some(b'M') => Some(60_000_000_000),
        Some(b'S') => Some(1_000_000_000),
        Some(b'm') => Some(1_000_000),
        Some(b'u') => Some(1_000),
        Some(b'n') => Some(1),
        _ => None,
    };
    let digits = data.split_last().map_or(data, |(_, digits)| digits);
    let sound = (1..=8).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let number = digits.iter().fold(0, |number: u128, digit| {
        number.wrapping_mul(10).wrapping_add(u128::from(digit.wrapping_sub(b'0')))
    });
    let expected = unit_ns.filter(|_| sound).map(|unit_ns| unit_ns * number);
    assert_eq!(service::timeout(data).map(|timeout| timeout.as_nanos()), expected);
}
