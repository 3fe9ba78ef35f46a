//! The cost of resolving a request without a host, for different live controls: none, exact identifiers, patterns,
//! networks. One rule by a header, and the client's address from the peer. Then configurations of many rules, of which a request
//! matches one by its path.
//!
//! Run with `cargo bench -p weir-core --bench resolve`. Decisions are measured by `decide`.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use weir_core::control::{Control, Controls, Effect, Selector, Target};
use weir_core::matching::networks::parse_network;
use weir_core::model::time::UnixMs;
use weir_core::model::wire;
use weir_core::rules::{Config, Lines, Live, Request, Scratch};

const NOW: UnixMs = UnixMs(1_700_000_040_000);
const REQUESTS: usize = 10_000;

/// A request with one header, by one of several clients.
struct Client {
    key: Vec<u8>,
    peer: Vec<u8>,
}

impl Client {
    fn new(number: usize) -> Client {
        let peer = format!("10.{}.{}.9:4000", number / 256 % 256, number % 256);
        Client { key: format!("api-key-{number:08}").into(), peer: peer.into() }
    }
}

impl Request for Client {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        if name == b"x-api-key" { Lines::One(&self.key) } else { Lines::None }
    }

    fn for_each_header(&self, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn property(&self, _: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.peer);
        true
    }
}

/// `count` controls; `selector` returns the selector for a number.
fn controls_of(count: usize, effect: Effect, selector: impl Fn(usize) -> Selector) -> Controls {
    let entry = |number: usize| {
        let target = Target {
            workspace: "acme".into(),
            scope: "requests".into(),
            selector: selector(number),
            window_ms: None,
        };
        let revision = number as u64 + 1;
        Control { target, effect, expires: None, revision }.to_wire()
    };
    let mut controls = Controls::default();
    controls.apply(&wire::Controls {
        incarnation: 1,
        entries: (0..count).map(entry).collect(),
        complete_through: count as u64 + 1,
        from_scratch: true,
        ..Default::default()
    });
    assert_eq!(controls.iter().count(), count);
    controls
}

fn identifier(number: usize) -> Selector {
    Selector::Identifier(format!("api-key-{number:08}"))
}

/// Distinct patterns, of which each client matches at most one.
fn pattern(number: usize) -> Selector {
    Selector::Identifier(format!("api-*-{number:08}*"))
}

fn network(number: usize) -> Selector {
    Selector::Network(parse_network(&format!("10.{}.{}.0/24", number / 256 % 256, number % 256)).unwrap())
}

fn resolve(c: &mut Criterion) {
    let config = br#"{
        "workspace": "acme",
        "aggregator": { "cluster": "weir" },
        "rules": [{
            "name": "requests", "identifier": { "header": "x-api-key" }, "limit": 100, "window": "1m"
        }]
    }"#;
    let config = Config::parse(config).unwrap();
    let clients: Vec<Client> = (0..REQUESTS).map(Client::new).collect();
    let cases = [
        ("nothing", Controls::default()),
        (
            "1 of another identifier",
            controls_of(1, Effect::Limit(7), |_| Selector::Identifier("somebody-else".into())),
        ),
        ("10k identifiers", controls_of(10_000, Effect::Limit(7), identifier)),
        ("10 patterns", controls_of(10, Effect::Limit(7), pattern)),
        ("100 patterns", controls_of(100, Effect::Limit(7), pattern)),
        ("1k patterns", controls_of(1_000, Effect::Limit(7), pattern)),
        ("1k networks", controls_of(1_000, Effect::Exempt, network)),
    ];
    let mut group = c.benchmark_group("resolve");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for (name, controls) in &cases {
        let live = Live { controls: Some(controls), now: NOW };
        let (mut scratch, mut next) = (Scratch::default(), 0);
        group.bench_function(*name, |bench| {
            bench.iter(|| {
                next = (next + 6_113) % clients.len();
                black_box(config.resolve(&clients[next], &live, &mut scratch).count())
            });
        });
    }
    group.finish();
}

/// A request for a path.
struct Sent(Vec<u8>);

impl Request for Sent {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        match name {
            b":path" => Lines::One(&self.0),
            b":authority" => Lines::One(b"api.example.com"),
            b"x-api-key" => Lines::One(b"api-key-00000001"),
            _ => Lines::None,
        }
    }

    fn for_each_header(&self, _: &[u8], _: &mut dyn FnMut(&[u8])) {}

    fn property(&self, _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }
}

fn many_rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("rules");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for count in [1, 8, 15, 16, 64, 1_024] {
        let rule = |at: usize| {
            format!(
                r#"{{"name": "r{at}", "match": {{"path": {{"prefix": "/api/v1/part{at}/"}}}},
                     "identifier": {{"header": "x-api-key"}}, "limit": 100, "window": "1m"}}"#
            )
        };
        let rules: Vec<String> = (0..count).map(rule).collect();
        let text = format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{}]}}"#, rules.join(","));
        let config = Config::parse(text.as_bytes()).unwrap();
        let requests: Vec<Sent> =
            (0..count).map(|at| Sent(format!("/api/v1/part{at}/items/7?page=2").into())).collect();
        let (mut scratch, mut next) = (Scratch::default(), 0);
        group.bench_function(count.to_string(), |bench| {
            bench.iter(|| {
                next = (next + 613) % requests.len();
                black_box(config.resolve(&requests[next], &Live::default(), &mut scratch).count())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, resolve, many_rules);
criterion_main!(benches);
