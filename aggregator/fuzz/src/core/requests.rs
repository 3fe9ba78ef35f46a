//! The filter's configuration, and requests against its rules.

use prost::Message;
use weir_core::matching::canonical::MAX_IDENTIFIER_BYTES;
use weir_core::model::trace::{MAX_REQUEST_ID_BYTES, Trace};
use weir_core::model::wire;
use weir_core::rules::{Config, Lines, Live, Request, Scratch};

/// A sound trace in a frame: both ids, a byte of flags, a request id, and their tags and lengths.
const MAX_TRACE_BYTES: usize = 18 + 10 + 3 + 2 + MAX_REQUEST_ID_BYTES;

/// Rules with every kind of part, condition and cost.
const CONFIG: &str = r#"{"aggregator": {"cluster": "c"}, "rules": [
    {"name": "parts", "limit": 5, "window": "1m", "identifier": [{"header": "x-key"}, {"cookie": "sid"}, {"query": "q"},
        {"path_segment": 2}, {"host": true}, {"jwt_claim": {"claim": "sub"}}, {"constant": "c|\\"},
        {"client_address": {"trusted_hops": 1, "ipv4_prefix": 24, "ipv6_prefix": 56}}],
        "overrides": [{"identifier": "a*|*", "limit": 7}, {"identifier": "b", "exempt": true}]},
    {"name": "match", "limit": 5, "window": "1h", "on_missing_identifier": "skip", "identifier": {"header": "x-key"},
        "match": {"path": {"regex": "^/a(/[a-z]+)*$"}, "methods": ["GET"], "host": "*.example.com",
            "headers": [{"name": "x-plan", "prefix": "p", "invert": true}]},
        "cost": {"request": {"header": "x-cost"}, "max": 9}}]}"#;

/// The filter's JSON. What is accepted stays accepted.
pub fn filter_config(data: &[u8]) {
    if let Ok(config) = Config::parse(data) {
        let again = Config::parse(data).expect("it was accepted before");
        assert_eq!(config.rules.len(), again.rules.len());
        assert!(!config.rules.is_empty());
    }
}

/// A request: header lines `name:value`, a peer address and a claim, each ended by a line feed.
struct Lined<'a> {
    lines: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Lined<'a> {
    fn new(data: &'a [u8]) -> Self {
        let lines = data.split(|byte| *byte == b'\n').map(|line| {
            // Pseudo-headers begin with a colon.
            let colon = line.iter().skip(1).position(|byte| *byte == b':').map_or(line.len(), |at| at + 1);
            let (name, value) = line.split_at(colon);
            (name, value.get(1..).unwrap_or_default())
        });
        Lined { lines: lines.collect() }
    }

    fn values(&self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        self.lines.iter().filter(move |(line, _)| *line == name).map(|(_, value)| *value)
    }
}

impl Request for Lined<'_> {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        let mut values = self.values(name);
        match (values.next(), values.next()) {
            (None, _) => Lines::None,
            (Some(value), None) => Lines::One(value),
            _ => Lines::Many,
        }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.values(name).for_each(line);
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        let name: &[u8] = if path == b"source\0address" { b"peer" } else { b"claim" };
        let mut found = false;
        for value in self.values(name) {
            out.extend_from_slice(value);
            found = true;
        }
        found
    }
}

/// A request against all rules: identifiers are short, and the same each time.
pub fn resolve(data: &[u8]) {
    let config = Config::parse(CONFIG.as_bytes()).expect("the rules above are sound");
    let request = Lined::new(data);
    let resolved = || {
        let mut scratch = Scratch::default();
        let matches = config.resolve(&request, &Live::default(), &mut scratch);
        matches
            .map(|matched| (matched.rule_index, matched.identifier.to_vec(), matched.action))
            .collect::<Vec<_>>()
    };
    let once = resolved();
    assert!(once.iter().all(|(_, identifier, _)| identifier.len() <= MAX_IDENTIFIER_BYTES));
    assert_eq!(once, resolved());
}

/// `traceparent` and `x-request-id`, with a line feed between them: what is sound is the same after the wire.
pub fn traceparent(data: &[u8]) {
    let mut headers = data.splitn(2, |byte| *byte == b'\n');
    let trace = Trace::of_headers(headers.next(), headers.next());
    let wire = trace.map(|trace| trace.to_wire());
    assert!(wire.as_ref().is_none_or(|wire| wire.encoded_len() <= MAX_TRACE_BYTES));
    assert_eq!(wire.as_ref().and_then(Trace::of_wire), trace);
    // Whatever a peer sends in its place is read, or not.
    if let Ok(wire) = wire::Trace::decode(data)
        && let Some(trace) = Trace::of_wire(&wire)
    {
        assert_eq!(Trace::of_wire(&trace.to_wire()), Some(trace));
    }
}
