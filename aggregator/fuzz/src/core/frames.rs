//! What filters, aggregators and their networks send.

use prost::Message;
use std::collections::BTreeMap;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Check, Decision, Limiter, Output, Policy, Setup};
use weir_core::model::exact::{self, Algorithm, ChargeResult};
use weir_core::model::key::{HashKey, Key, KeyParts, NodeId};
use weir_core::model::shared::MemoryShared;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire::{Changes, FilterFrame, PROTOCOL_VERSION, RegionFrame, Welcome};
use weir_core::region::exchange::StoreIds;
use weir_core::region::{Region, RegionLimits};

const NOW: UnixMs = UnixMs(1_700_000_040_000);
const MONO: MonoMs = MonoMs(1_000_000);
const NODE: NodeId = NodeId([7; 16]);
const TIMEOUT_MS: u32 = 50;

/// Canonical key bytes: what is read is written the same.
pub fn key(data: &[u8]) {
    if let Ok(parts) = KeyParts::decode(data) {
        let mut bytes = Vec::new();
        parts.encode(&mut bytes).expect("it was read");
        assert_eq!(bytes, data);
    }
}

/// A filter's frame, taken by a region.
pub fn filter_frame(data: &[u8]) {
    let Ok(frame) = FilterFrame::decode(data) else { return };
    let mut region = Region::new(RegionLimits { max_keys: 64, ..RegionLimits::default() }, HashKey(1, 2));
    region.nodes.received_from(NODE, MonoMs(NOW.0));
    region.subscribe(NODE);
    for _ in 0..2 {
        if let Some(report) = &frame.report {
            for (_, snapshot) in region.report(NODE, &report.counts, NOW).baselines {
                region.baseline(NODE, &snapshot);
            }
        }
        for query in &frame.queries {
            // A refusal will do.
            let _ = region.query(NODE, query, NOW);
        }
        while region.next_push(NODE, NOW).is_some() {}
        while region.tick(NOW) {}
    }
    for request in
        frame.exact_requests.iter().chain(frame.refunds.iter().filter_map(|refund| refund.request.as_ref()))
    {
        if let Ok(charges) = exact::charges(request) {
            let wire: Vec<_> = charges.iter().map(exact::Charge::to_wire).collect();
            let again: Result<Vec<_>, _> = wire.iter().map(exact::Charge::from_wire).collect();
            assert_eq!(again, Ok(charges));
        }
    }
}

/// An aggregator's frame, taken by a worker whose requests wait for answers and for results.
pub fn region_frame(data: &[u8]) {
    let Ok(frame) = RegionFrame::decode(data) else { return };
    wait_for_answers(&frame);
    wait_for_results(&frame);
}

fn wait_for_answers(frame: &RegionFrame) {
    let mut shared = MemoryShared::default();
    let mut limiter = limiter(&mut shared);
    let key = sample_key(b"i");
    let check = sample_check(&key);
    for round in 0..4 {
        let mono = MONO.after(round * 60);
        limiter.decide(&mut shared, round, &[check], mono);
        limiter.tick(&mut shared, Now { unix: UnixMs(NOW.0 + round * 60), mono });
        while limiter.next(&mut shared, mono).is_some() {}
        limiter.on_frame(&mut shared, frame, mono);
        while limiter.next(&mut shared, mono).is_some() {}
    }
    limiter.shutdown(&mut shared, MONO.after(500));
}

/// Whatever is ruled, each request ends once and in time, and none passes whose charges did not.
fn wait_for_results(frame: &RegionFrame) {
    let mut shared = MemoryShared::default();
    let mut limiter = limiter(&mut shared);
    let welcome = Some(Welcome { version: PROTOCOL_VERSION, ..Welcome::default() });
    limiter.on_frame(&mut shared, &RegionFrame { welcome, ..RegionFrame::default() }, MONO);
    let (window, log, shadow) = (sample_key(b"i"), sample_key(b"log"), sample_key(b"shadow"));
    let policy = Policy { timeout_ms: TIMEOUT_MS, deny_on_failure: true, ..Policy::default() };
    let exact = |rule, algorithm, key, shadow| {
        let policy = Policy { shadow, ..policy };
        Check { rule, algorithm, key, cell_ms: 0, limit: 3, configured: None, cost: 1, policy }
    };
    let checks = [
        sample_check(&window),
        exact(1, Algorithm::Log, log.as_bytes(), false),
        exact(2, Algorithm::Ledger { zone: 7 }, b"b", false),
        exact(3, Algorithm::Log, shadow.as_bytes(), true),
    ];
    // The exact requests, by their requests.
    let mut waiting: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for request in 0..4 {
        let mono = MONO.after(request * 2 * u64::from(TIMEOUT_MS));
        let outcome = limiter.decide(&mut shared, request, &checks, mono);
        assert!(!matches!(outcome.decision, Decision::Allow(_)), "it passes without a query");
        if outcome.decision == Decision::Wait {
            waiting.insert(request, None);
        }
        for output in outputs(&mut limiter, &mut shared, mono) {
            let Output::Send(sent) = output else { continue };
            let enforced = sent
                .exact_requests
                .iter()
                .find(|request| request.charges.len() == 2)
                .map(|request| request.id);
            waiting.entry(request).and_modify(|id| *id = id.or(enforced));
        }
        limiter.on_frame(&mut shared, frame, mono);
        end(&outputs(&mut limiter, &mut shared, mono), &mut waiting, frame);
        let late = mono.after(u64::from(TIMEOUT_MS));
        limiter.tick(&mut shared, Now { unix: NOW, mono: late });
        end(&outputs(&mut limiter, &mut shared, late), &mut waiting, frame);
        assert!(waiting.is_empty(), "a request waits beyond its timeout");
    }
    let end = MONO.after(500);
    limiter.shutdown(&mut shared, end);
    let outputs = outputs(&mut limiter, &mut shared, end);
    assert!(!outputs.iter().any(|output| matches!(output, Output::Resolve { .. })));
}

/// What the limiter has its driver do.
fn outputs(limiter: &mut Limiter, shared: &mut MemoryShared, now: MonoMs) -> Vec<Output> {
    std::iter::from_fn(|| limiter.next(shared, now)).collect()
}

/// Takes the requests that need not wait any more from those that do.
fn end(outputs: &[Output], waiting: &mut BTreeMap<u64, Option<u64>>, frame: &RegionFrame) {
    for output in outputs {
        let Output::Resolve { request, outcome } = output else { continue };
        let id = waiting.remove(request).expect("it ends once");
        assert_ne!(outcome.decision, Decision::Wait);
        let mut results = frame.results.iter().filter(|results| Some(results.id) == id);
        let allowed = results.any(|results| match results.results.as_slice() {
            [log, ledger, ..] => {
                [log, ledger].iter().all(|result| ChargeResult::from_wire(result).is_allowed())
            }
            _ => false,
        });
        assert!(allowed || !matches!(outcome.decision, Decision::Allow(_)), "it passes without a result");
    }
}

/// Changes that an aggregator receives from a peer.
pub fn changes(data: &[u8]) {
    let Ok(changes) = Changes::decode(data) else { return };
    let mut region = Region::new(RegionLimits { max_keys: 64, ..RegionLimits::default() }, HashKey(1, 2));
    region.attach_store();
    region.set_store_ids(StoreIds(vec![data.len() as u64 % 2]));
    for change in &changes.cells {
        let Ok(key) = Key::parse(&change.key) else { continue };
        let parts = change
            .parts
            .iter()
            .filter_map(|part| Some((NodeId(part.node.as_slice().try_into().ok()?), part.own)));
        let parts: Vec<_> = parts.collect();
        // A refusal will do.
        let store_ids = StoreIds(changes.store_ids.clone());
        let _ = region.learn_from_peer(&key, change.sequence, change.limit, &parts, &store_ids, NOW);
    }
    while region.tick(NOW) {}
}

fn limiter(shared: &mut MemoryShared) -> Limiter {
    let geometry = Geometry { buckets: 4, keys_per_bucket: 2 };
    let meta = Meta::establish(shared, Meta { node: NODE, secret: HashKey(1, 2), geometry });
    let setup = Setup { meta, worker: 5, local_sets: 4 };
    Limiter::new(setup, Now { unix: NOW, mono: MONO })
}

fn sample_check(key: &Key) -> Check<'_> {
    let policy = Policy { timeout_ms: TIMEOUT_MS, ..Policy::default() };
    Check {
        rule: 0,
        algorithm: Algorithm::Window,
        key: key.as_bytes(),
        cell_ms: 60_000,
        limit: 5,
        configured: None,
        cost: 1,
        policy,
    }
}

fn sample_key(identifier: &[u8]) -> Key {
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier,
        duration_ms: 60_000,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).expect("the parts are short")
}
