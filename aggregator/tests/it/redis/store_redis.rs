//! Tests of the regional store with a real Redis: merges, grants, lower bounds, the hot index, liveness, and messages.

use crate::support::redis::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::timeout;
use weir_aggregator::redis::{HOT_SHARDS, Received, Store};
use weir_core::model::key::{Key, KeyParts, NodeId};
use weir_core::model::time::UnixMs;
use weir_core::model::window::{MAX_COUNT, Position, Used};
use weir_core::region::exchange::{BASELINE, LowerBound, Merge, Merged, Proposal};
use weir_core::replication::members::Member;
use weir_core::replication::regional::clock::{SharedTime, TimeProposal};
use weir_envoy::{Redis, wait};

#[tokio::test]
async fn components_merge_by_max_and_all_are_returned() {
    let (_redis, store) = started().await;
    let key = key(b"alice");
    let merged = merge_one(&store, merge(&key, &[(A, 5), (C, 0)])).await;
    assert_eq!(merged.current, [(C, 0), (A, 5)], "a count of 0 shows that the node uses the cell");
    assert_eq!((merged.granted, merged.previous, merged.limit), (None, vec![], u64::MAX));
    for (parts, expected) in [
        (vec![(A, 3)], vec![(C, 0), (A, 5)]), // late
        (vec![(A, 5)], vec![(C, 0), (A, 5)]), // repeated
        (vec![(B, 7), (C, 2)], vec![(C, 2), (A, 5), (B, 7)]),
        (vec![(C, 0)], vec![(C, 2), (A, 5), (B, 7)]),
        (vec![], vec![(C, 2), (A, 5), (B, 7)]),
    ] {
        assert_eq!(merge_one(&store, merge(&key, &parts)).await.current, expected, "{parts:?}");
    }
    let next = Merge { sequence: CELL + 1, wants_previous: true, ..merge(&key, &[(A, 1)]) };
    let merged = merge_one(&store, next).await;
    assert_eq!((merged.current, merged.previous), (vec![(A, 1)], vec![vec![(C, 2), (A, 5), (B, 7)]]));
    let read = store.read(&[(key.clone(), CELL), (numbered(1), CELL)], AMPLE).await;
    assert_eq!(read[0].as_ref().unwrap().current, [(C, 2), (A, 5), (B, 7)]);
    assert_eq!(read[1].as_ref().unwrap().current, []);
}

#[tokio::test]
async fn counts_are_exact_up_to_the_highest() {
    let (_redis, store) = started().await;
    let key = key(b"huge");
    for count in [MAX_COUNT / 2, MAX_COUNT - 2, MAX_COUNT - 1, MAX_COUNT, u64::MAX] {
        let merged = merge_one(&store, merge(&key, &[(A, count), (B, count)])).await;
        let count = count.min(MAX_COUNT);
        assert_eq!(merged.current, [(A, count), (B, count)]);
    }
    // If the total is above 2^53, a proposal is refused, whatever the limit.
    let merged = merge_one(&store, proposing(&key, proposal(C, 0, u64::MAX))).await;
    assert_eq!(merged.granted, Some(false));
    for near in [MAX_COUNT - 1, MAX_COUNT] {
        let alone = numbered(usize::try_from(near).unwrap());
        let merged = merge_one(&store, proposing(&alone, proposal(A, near, near))).await;
        assert_eq!((merged.granted, merged.current), (Some(true), vec![(A, near)]));
        let merged = merge_one(&store, proposing(&alone, proposal(B, 1, near))).await;
        assert_eq!(merged.granted, Some(false));
    }
}

#[tokio::test]
async fn the_lowest_limit_stays() {
    let (_redis, store) = started().await;
    let key = key(b"alice");
    for (limit, expected) in [(u64::MAX, u64::MAX), (100, 100), (200, 100), (u64::MAX, 100), (0, 0), (5, 0)] {
        let merged = merge_one(&store, Merge { limit, ..merge(&key, &[(A, 1)]) }).await;
        assert_eq!(merged.limit, expected);
    }
    assert_eq!(store.read(&[(key, CELL)], AMPLE).await[0].as_ref().unwrap().limit, 0);
    let most = merge_one(&store, Merge { limit: u64::MAX - 1, ..merge(&numbered(1), &[]) }).await;
    assert_eq!(most.limit, MAX_COUNT);
}

#[tokio::test]
async fn a_proposal_considers_all_that_is_used() {
    let (_redis, store) = started().await;
    let cells = [(CELL - 1, 7), (CELL, 4)];
    // Half of the previous window is covered: floor((7 + global) / 2) + 4 + global.
    let cases = [
        // own, limit, global now, global before → granted
        (0, 7, 0, 0, true), // cost 0 passes at the limit
        (0, 6, 0, 0, false),
        (1, 8, 0, 0, true),
        (2, 8, 0, 0, false),
        (1, 9, 1, 0, true),
        (1, 8, 1, 0, false),
        (1, 9, 0, 1, true),
        (1, 8, 0, 1, false),
        (1, 8, 0, u64::MAX, false),
        (1, u64::MAX, u64::MAX, 0, false),
    ];
    for (number, (own, limit, global_current, global_previous, granted)) in cases.into_iter().enumerate() {
        let key = numbered(number);
        for (sequence, count) in cells {
            merge_one(&store, Merge { sequence, ..merge(&key, &[(A, count)]) }).await;
        }
        let proposal = Proposal { global_current, global_previous, ..proposal(B, own, limit) };
        let merged = merge_one(&store, proposing(&key, proposal)).await;
        assert_eq!(merged.granted, Some(granted), "case {number}");
        let expected = if granted { vec![(A, 4), (B, own)] } else { vec![(A, 4)] };
        assert_eq!(merged.current, expected, "case {number}");
    }
}

/// A key whose windows have ten cells, each counted in full.
fn fine(identifier: &[u8]) -> Key {
    Key::new(&KeyParts { resolution: 10, ..key(identifier).parts() }).unwrap()
}

#[tokio::test]
async fn a_proposal_of_a_hard_limit_considers_eleven_cells_in_full() {
    let (_redis, store) = started().await;
    let key = fine(b"alice");
    // One cell that the window no longer touches, the ten before, and the current one: 11 × 2, of which 22 count.
    for back in 0..=11 {
        merge_one(&store, Merge { sequence: CELL - back, ..merge(&key, &[(A, 1), (C, 1)]) }).await;
    }
    let full = |own, limit, global_current, global_previous| Proposal {
        global_current,
        global_previous,
        covered_ms: 6_000,
        cell_ms: 6_000,
        ..proposal(B, own, limit)
    };
    for (own, limit, now, before, granted) in [
        (0, 22, 0, 0, true),
        (0, 21, 0, 0, false),
        (3, 24, 0, 0, false),
        (3, 28, 2, 2, false),
        (3, 29, 2, 2, true),
        (3, 25, 0, 0, true), // repeated
        (4, 25, 0, 0, false),
    ] {
        let merged = merge_one(&store, proposing(&key, full(own, limit, now, before))).await;
        assert_eq!(merged.granted, Some(granted), "{own} of {limit} with {now} and {before} elsewhere");
    }
    let with_previous = Merge { wants_previous: true, ..merge(&key, &[]) };
    let merged = merge_one(&store, with_previous).await;
    assert_eq!(merged.current, [(C, 1), (A, 1), (B, 3)]);
    assert_eq!(merged.previous, vec![vec![(C, 1), (A, 1)]; 10], "the eleventh cell must not count");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposers_in_different_cells_of_a_hard_limit_never_pass_its_limit() {
    const LIMIT: u64 = 200;
    let redis = redis().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = open(&options(&redis.url())).await;
        tasks.spawn(async move {
            let mut own = 0;
            // Half of them are still in the previous cell; their grants count at once against the others' window.
            let sequence = CELL + number % 2;
            for _ in 0..LIMIT {
                let full =
                    Proposal { covered_ms: 6_000, cell_ms: 6_000, ..proposal(node(number), own + 1, LIMIT) };
                let request = Merge { sequence, ..proposing(&fine(b"all"), full) };
                own += u64::from(merge_one(&store, request).await.granted.unwrap());
            }
            (sequence, own)
        });
    }
    let granted = tasks.join_all().await;
    let of = |cell: u64| -> u64 { granted.iter().filter(|(at, _)| *at == cell).map(|(_, own)| own).sum() };
    let (older, newer) = (of(CELL), of(CELL + 1));
    assert!(older <= LIMIT, "{older} in a window that ends with the older cell");
    assert!(older + newer >= LIMIT, "{older} and {newer}");
    // A proposal in the newer cell counts both.
    let full = Proposal { covered_ms: 6_000, cell_ms: 6_000, ..proposal(A, 1, LIMIT) };
    let store = open(&options(&redis.url())).await;
    let request = Merge { sequence: CELL + 1, ..proposing(&fine(b"all"), full) };
    assert_eq!(merge_one(&store, request).await.granted, Some(false));
}

#[tokio::test]
async fn a_proposal_is_absolute_and_may_be_repeated() {
    let (_redis, store) = started().await;
    let key = key(b"alice");
    for _ in 0..3 {
        assert_eq!(merge_one(&store, proposing(&key, proposal(A, 10, 10))).await.granted, Some(true));
    }
    // A proposal below the stored count is judged by the stored count.
    assert_eq!(merge_one(&store, proposing(&key, proposal(A, 3, 9))).await.granted, Some(false));
    let own = Merge { parts: vec![(B, 2)], ..proposing(&key, proposal(B, 3, 13)) };
    let merged = merge_one(&store, own).await;
    assert_eq!((merged.granted, merged.current), (Some(true), vec![(A, 10), (B, 3)]));
}

#[tokio::test]
async fn a_lower_bound_stays_and_new_use_above_it_adds_up() {
    let (_redis, store) = started().await;
    let key = key(b"alice");
    let bound = |lower_bound, parts: &[(NodeId, u64)]| Merge { lower_bound, ..merge(&key, parts) };
    let held = |merged: Merged| (merged.granted, merged.current, merged.lower_bound);
    // Twice: all is as sent, and then something else is there.
    for _ in 0..2 {
        let merged = merge_one(&store, bound(60, &[(A, 5)])).await;
        assert_eq!(held(merged), (None, vec![(A, 5)], 60));
    }
    assert_eq!(merge_one(&store, bound(50, &[])).await.lower_bound, 60);
    // One node returns what it had used, and another one spends more.
    assert_eq!(merge_one(&store, merge(&key, &[(B, 20)])).await.lower_bound, 60);
    let further = Merge { above: vec![A, C], ..bound(65, &[(A, 10), (C, 3)]) };
    for _ in 0..2 {
        let merged = merge_one(&store, further.clone()).await;
        assert_eq!(
            held(merged),
            (None, vec![(C, 3), (A, 10), (B, 20)], 65),
            "what C had used before is not known"
        );
    }
    let refused = merge_one(&store, proposing(&key, proposal(C, 39, 100))).await;
    assert_eq!((refused.granted, refused.lower_bound), (Some(false), 65));
    for _ in 0..2 {
        let granted = merge_one(&store, proposing(&key, proposal(C, 38, 100))).await;
        assert_eq!(held(granted), (Some(true), vec![(C, 38), (A, 10), (B, 20)], 100));
    }
    // The next window counts it as the one before.
    let next = Merge { sequence: CELL + 1, ..proposing(&key, proposal(A, 51, 100)) };
    assert_eq!(merge_one(&store, next).await.granted, Some(false));
    let next = Merge { sequence: CELL + 1, ..proposing(&key, proposal(A, 50, 100)) };
    assert_eq!(merge_one(&store, next).await.granted, Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_proposers_reach_the_limit_and_never_pass_it() {
    const LIMIT: u64 = 500;
    const PROPOSERS: u64 = 16;
    let redis = redis().await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..PROPOSERS {
        let store = open(&options(&redis.url())).await;
        tasks.spawn(async move {
            let mut own = 0;
            loop {
                let merged =
                    merge_one(&store, proposing(&key(b"all"), proposal(node(number), own + 1, LIMIT))).await;
                let total: u64 = merged.current.iter().map(|part| part.1).sum();
                assert!(total <= LIMIT);
                match merged.granted.unwrap() {
                    true => own += 1,
                    false => return own,
                }
            }
        });
    }
    let granted: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(granted, LIMIT);
}

/// The script computes in doubles, the core in integers. They must decide alike, above all at the limit.
#[tokio::test]
async fn the_script_decides_as_the_core_does() {
    const CASES: usize = 3_000;
    let (_redis, store) = started().await;
    let mut random = StdRng::seed_from_u64(20_261_121);
    let (mut before, mut proposals, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CASES {
        let case = Case::random(&mut random);
        let key = numbered(number);
        let previous = case.previous.iter().map(|&(node, count)| (node, count)).collect::<Vec<_>>();
        before.push(Merge { sequence: CELL - 1, ..merge(&key, &previous) });
        proposals.push(Merge { parts: case.current.clone(), ..proposing(&key, case.proposal) });
        expected.push(case.granted());
    }
    assert!(store.merge(&before, now(), AMPLE).await.iter().all(Result::is_ok));
    let merged = store.merge(&proposals, now(), AMPLE).await;
    let granted = expected.iter().filter(|granted| **granted).count();
    assert!(
        granted > CASES / 5 && granted < CASES * 4 / 5,
        "{granted} of {CASES} are too one-sided for a meaningful test"
    );
    for ((merged, expected), proposal) in merged.into_iter().zip(expected).zip(proposals) {
        assert_eq!(merged.unwrap().granted, Some(expected), "{proposal:?}");
    }
}

struct Case {
    current: Vec<(NodeId, u64)>,
    previous: Vec<(NodeId, u64)>,
    proposal: Proposal,
}

impl Case {
    fn random(random: &mut StdRng) -> Case {
        // Counts of every magnitude; the sums stay below 2^53, where the core and the script agree.
        let bits = random.random_range(1..50);
        let count = |random: &mut StdRng| random.random_range(0..1_u64 << bits);
        let parts = |random: &mut StdRng| {
            [A, B, C].into_iter().take(random.random_range(0..4)).map(|node| (node, count(random))).collect()
        };
        let (current, previous) = (parts(random), parts(random));
        let cell_ms = random.random_range(1..=31_622_400_000);
        let mut proposal = Proposal {
            node: B,
            own: count(random),
            limit: 0,
            global_current: count(random),
            global_previous: count(random),
            covered_ms: random.random_range(0..=cell_ms),
            cell_ms,
        };
        let mut case = Case { current, previous, proposal };
        let used = case.used().effective(&case.at());
        proposal.limit = match random.random_range(0..4) {
            0 => used,
            1 => used.saturating_sub(1),
            2 => used + 1,
            _ => random.random_range(0..=2 * used + 1),
        };
        case.proposal = proposal;
        case
    }

    fn used(&self) -> Used {
        let mut current: BTreeMap<_, _> = self.current.iter().copied().collect();
        let own = current.entry(self.proposal.node).or_default();
        *own = self.proposal.own.max(*own);
        let previous: u64 = self.previous.iter().map(|part| part.1).sum();
        Used::Average {
            current: current.values().sum::<u64>() + self.proposal.global_current,
            previous: previous + self.proposal.global_previous,
        }
    }

    fn at(&self) -> Position {
        let Proposal { cell_ms, covered_ms, .. } = self.proposal;
        Position { sequence: CELL, elapsed_ms: cell_ms - covered_ms, cell_ms }
    }

    fn granted(&self) -> bool {
        self.used().admits(&self.at(), 0, self.proposal.limit)
    }
}

#[tokio::test]
async fn a_cell_expires_when_its_first_writer_requested_but_not_within_a_minute() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let name = "weir:eu:{default/login/alice/60000/0/1}:29000000";
    let mut first = None;
    for (count, expires) in [(1, LATE.0), (2, LATE.0 - 5_000), (3, 1)] {
        merge_one(&store, Merge { expires: UnixMs(expires), ..merge(&key(b"alice"), &[(A, count)]) }).await;
        let at: u64 = redis::cmd("PEXPIRETIME").arg(name).query(&mut hand).unwrap();
        assert!((LATE.0..LATE.0 + 60_000).contains(&at) && *first.get_or_insert(at) == at, "{at}");
    }
    let unread = merge_one(&store, merge(&key(b"bob"), &[])).await;
    assert_eq!(unread.current, []);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*bob*").query(&mut hand).unwrap();
    assert!(keys.is_empty(), "reading leaves no key: {keys:?}");
    merge_one(&store, Merge { expires: UnixMs(1), ..merge(&key(b"over"), &[(A, 1)]) }).await;
    let over = "weir:eu:{default/login/over/60000/0/1}:29000000";
    let left: u64 = redis::cmd("PTTL").arg(over).query(&mut hand).unwrap();
    assert!(
        (50_000..=60_000).contains(&left),
        "the expiry must not depend on the aggregator's clock: {left} ms"
    );
    redis::cmd("PEXPIRE").arg(over).arg(30_000).exec(&mut hand).unwrap();
    merge_one(&store, Merge { expires: UnixMs(1), ..merge(&key(b"over"), &[(A, 1)]) }).await;
    let left: u64 = redis::cmd("PTTL").arg(over).query(&mut hand).unwrap();
    assert!((50_000..=60_000).contains(&left), "a cell in use is kept: {left} ms");
}

#[tokio::test]
async fn a_baseline_is_what_is_missing_and_grows_by_evidence_of_more() {
    let (_redis, store) = started().await;
    let lower_bound =
        |number: usize, total| LowerBound { key: numbered(number), sequence: CELL, total, expires: LATE };
    merge_one(&store, merge(&numbered(0), &[(A, 30)])).await;
    merge_one(&store, merge(&numbered(1), &[(A, 130)])).await;
    let expected =
        [vec![(BASELINE, 70), (A, 30)], vec![(A, 130)], vec![(BASELINE, 100)], vec![(BASELINE, MAX_COUNT)]];
    let lower_bounds =
        [lower_bound(0, 100), lower_bound(1, 100), lower_bound(2, 100), lower_bound(3, u64::MAX)];
    let raised = |merged: Vec<Result<_, _>>| -> Vec<Vec<_>> {
        merged
            .into_iter()
            .map(|merged: Result<weir_core::region::exchange::Merged, _>| merged.unwrap().current)
            .collect()
    };
    assert_eq!(raised(store.raise_to(&lower_bounds, now(), AMPLE).await), expected);
    // Another aggregator has evidence of as much, less, or more.
    assert_eq!(raised(store.raise_to(&lower_bounds, now(), AMPLE).await), expected);
    let others = [lower_bound(0, 50), lower_bound(0, 500), lower_bound(2, 500)];
    assert_eq!(
        raised(store.raise_to(&others, now(), AMPLE).await),
        [expected[0].clone(), vec![(BASELINE, 470), (A, 30)], vec![(BASELINE, 500)]]
    );
    // A baseline merges like any other component.
    assert_eq!(
        merge_one(&store, merge(&numbered(2), &[(BASELINE, 90), (B, 1)])).await.current,
        [(BASELINE, 500), (B, 1)]
    );
}

#[tokio::test]
async fn identifiers_that_look_alike_count_apart() {
    let (_redis, store) = started().await;
    let identifiers: [&[u8]; 22] = [
        b"",
        b"Alice",
        b"alice",
        "alic\u{e9}".as_bytes(),
        "alice\u{301}".as_bytes(),
        b"alice ",
        b" alice",
        b"alice\0",
        b"\0",
        b"\xff\xfe",
        b"a/b",
        b"a%2Fb",
        b"a%2fb",
        b"{a}",
        b"{",
        b"}",
        b"a:b",
        b"a:1",
        b"*",
        b"a\r\nb",
        b"%",
        b"[a]",
    ];
    let mut cells = Vec::new();
    for (count, identifier) in (1..).zip(identifiers) {
        cells.push(merge(&key(identifier), &[(A, count)]));
    }
    // The same texts, split at another place.
    for (count, (namespace, identifier)) in
        (100..).zip([("a", "b/c"), ("a/b", "c"), ("a", "b"), ("a/b/c", "")])
    {
        let (workspace, namespace, identifier) =
            (b"w".as_slice(), namespace.as_bytes(), identifier.as_bytes());
        let parts =
            KeyParts { workspace, namespace, identifier, duration_ms: 1_000, epoch: 0, resolution: 1 };
        for (more, parts) in
            (0..).zip([parts, KeyParts { epoch: 1, ..parts }, KeyParts { resolution: 2, ..parts }])
        {
            cells.push(merge(&Key::new(&parts).unwrap(), &[(A, count * 10 + more)]));
        }
    }
    for merged in [store.merge(&cells, now(), AMPLE).await, store.merge(&cells, now(), AMPLE).await] {
        for (merged, cell) in merged.into_iter().zip(&cells) {
            assert_eq!(merged.unwrap().current, cell.parts, "{:?}", cell.key);
        }
    }
}

#[tokio::test]
async fn foreign_values_harm_no_other_cell() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    merge_one(&store, Merge { limit: 9, ..merge(&numbered(0), &[(A, 5)]) }).await;
    let cell = "weir:eu:{default/login/user-0/60000/0/1}:29000000";
    let fields: [(&[u8], &str); 6] = [
        (b"note", "x"),
        (b"", "1"),
        (&B.0, "-3"),
        (&C.0, "1e3"),
        (b"l", "none"),
        (&[7; 16], "99999999999999999"),
    ];
    redis::cmd("HSET").arg(cell).arg(&fields).exec(&mut hand).unwrap();
    redis::cmd("SET")
        .arg("weir:eu:{default/login/user-1/60000/0/1}:29000000")
        .arg("text")
        .exec(&mut hand)
        .unwrap();
    let crowd: Vec<(String, u64)> = (0..8_193).map(|number| (format!("field-{number}"), 1)).collect();
    let crowded = "weir:eu:{default/login/user-3/60000/0/1}:29000000";
    redis::cmd("HSET").arg(crowded).arg(&crowd).exec(&mut hand).unwrap();
    // So many cells are merged by few calls.
    let cells: Vec<_> = (0..200).map(|number| merge(&numbered(number), &[(A, 6)])).collect();
    let merged = store.merge(&cells, now(), AMPLE).await;
    assert!(merged[3].as_ref().unwrap_err().to_string().contains("too many fields"));
    assert!(
        merged[1].as_ref().unwrap_err().is_of_the_cell() && merged[3].as_ref().unwrap_err().is_of_the_cell()
    );
    assert_eq!(merged.iter().filter(|merged| merged.is_err()).count(), 2);
    assert_eq!(merged[0].as_ref().unwrap().current, [(A, 6)]);
    assert_eq!(merged[1].as_ref().unwrap_err().reason(), "refused");
    assert!(merged[1].as_ref().unwrap_err().to_string().contains("WRONGTYPE"));
    assert_eq!(merged[2].as_ref().unwrap().current, [(A, 6)]);
    let healed = merge_one(&store, Merge { limit: 8, ..merge(&numbered(0), &[(B, 1), (C, 2)]) }).await;
    assert_eq!((healed.current, healed.limit), (vec![(C, 2), (A, 6), (B, 1)], 8));
}

#[tokio::test]
async fn a_cell_of_many_nodes_is_written_and_read_completely() {
    let (_redis, store) = started().await;
    let parts: Vec<_> = (0..4_096).map(|number| (node(number), number)).collect();
    let merged = merge_one(&store, merge(&key(b"all"), &parts)).await;
    assert_eq!(merged.current, parts);
}

#[tokio::test]
async fn a_call_that_has_read_much_leaves_cells_for_the_next() {
    let (redis, store) = started().await;
    let crowd: Vec<_> = (0..1_000).map(|number| (node(number), number)).collect();
    let cells: Vec<_> = (0..40).map(|number| merge(&numbered(number), &crowd)).collect();
    let first = store.merge(&cells, now(), AMPLE).await;
    let before = calls(&redis);
    let more: Vec<_> = (0..40).map(|number| merge(&numbered(number), &[(A, 5)])).collect();
    for (number, merged) in store.merge(&more, now(), AMPLE).await.into_iter().enumerate() {
        assert_eq!(first[number].as_ref().unwrap().current, crowd);
        assert_eq!(merged.unwrap().current, [&[(A, 5)], &crowd[..]].concat(), "{number}");
    }
    // Five cells of 1 000 fields and values in turn end a call, and each call has the two commands of its receipt.
    assert_eq!(calls(&redis) - before, 8 * 3);
}

/// Script calls that the server has executed.
fn calls(redis: &Redis) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut hand(redis)).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_large_batch_keeps_its_order() {
    let (redis, store) = started().await;
    let before = calls(&redis);
    let cells: Vec<_> =
        (0..5_000).map(|number| merge(&numbered(number), &[(A, u64::try_from(number).unwrap())])).collect();
    for (merged, cell) in store.merge(&cells, now(), AMPLE).await.into_iter().zip(&cells) {
        assert_eq!(merged.unwrap().current, cell.parts);
    }
    // 256 cells in a pipeline.
    assert_eq!(
        calls(&redis) - before,
        79 + 2 * 20,
        "64 cells in a call, and two for the receipt of each pipeline"
    );
    assert!(store.merge(&[], now(), AMPLE).await.is_empty());
}

#[tokio::test]
async fn regions_and_prefixes_count_apart() {
    let (redis, store) = started().await;
    let mut other = options(&redis.url());
    other.region = "us".to_owned();
    let us = open(&other).await;
    other.prefix = "e:u".to_owned();
    let prefixed = open(&other).await;
    for (store, count) in [(&store, 1), (&us, 2), (&prefixed, 3)] {
        assert_eq!(merge_one(store, merge(&key(b"alice"), &[(A, count)])).await.current, [(A, count)]);
    }
}

/// Expiries are by the region's time. A server deletes by its own clock, which may be another one, and another one than the clock of the
/// server that held the region's time.
#[tokio::test]
async fn a_cell_lives_as_long_as_it_counts_whatever_the_server_s_clock_shows() {
    const HOUR_MS: u64 = 3_600_000;
    let server = Clocked::start().await;
    let store = open(&options(&server.url)).await;
    let mut hand = redis::Client::open(server.url.as_str()).unwrap().get_connection().unwrap();
    let region = now();
    for (number, offset_s) in [0, 7_200, -86_400].into_iter().enumerate() {
        server.clock.set(offset_s);
        let cell = numbered(number);
        merge_one(&store, Merge { expires: UnixMs(region.0 + HOUR_MS), ..merge(&cell, &[(A, 1)]) }).await;
        let name = format!("weir:eu:{{default/login/user-{number}/60000/0/1}}:29000000");
        let left: u64 = redis::cmd("PTTL").arg(name).query(&mut hand).unwrap();
        assert!(left.abs_diff(HOUR_MS) < 60_000, "{offset_s} s ahead: {left} ms are left");
    }
}

#[tokio::test]
async fn the_hot_index_returns_cells_until_they_expire() {
    let (redis, store) = started().await;
    let cells: Vec<_> = (0..200)
        .map(|number| {
            (key(format!("{{a/b}}:%\0{number}").as_bytes()), CELL + number, UnixMs(LATE.0 + number))
        })
        .collect();
    for _ in 0..2 {
        store.note_hot(&cells, now(), AMPLE).await.unwrap();
    }
    let soon = UnixMs(LATE.0 - 1);
    assert_eq!(hot(&store, soon, 1_000).await, cells.iter().map(|cell| (cell.0.clone(), cell.1)).collect());
    // The upper half is left, and at most two in each shard.
    let rest = hot(&store, UnixMs(LATE.0 + 99), 1_000).await;
    assert_eq!(rest, cells[100..].iter().map(|cell| (cell.0.clone(), cell.1)).collect());
    assert_eq!(hot(&store, soon, 1_000).await, rest, "the others have expired");
    assert!(hot(&store, soon, 2).await.len() <= 2 * HOT_SHARDS);
    assert_eq!(hot(&store, soon, 0).await.len(), 0);
    assert_eq!(store.hot(HOT_SHARDS, LATE, 10, AMPLE).await, Ok(vec![]));

    let mut hand = hand(&redis);
    redis::cmd("ZADD").arg("weir:eu:hot:{0}").arg("inf").arg("not a cell").exec(&mut hand).unwrap();
    assert_eq!(hot(&store, soon, 1_000).await, rest);
    let expires: u64 = redis::cmd("PEXPIRETIME").arg("weir:eu:hot:{0}").query(&mut hand).unwrap();
    assert!((LATE.0..LATE.0 + 60_000).contains(&expires));
}

async fn hot(store: &Store, now: UnixMs, at_most: usize) -> BTreeSet<(Key, u64)> {
    let mut cells = BTreeSet::new();
    for shard in 0..HOT_SHARDS {
        cells.extend(store.hot(shard, now, at_most, AMPLE).await.unwrap());
    }
    cells
}

/// The script does what the core's rule does, which the simulator runs.
#[tokio::test]
async fn the_region_s_time_is_the_core_s() {
    let (_redis, store) = started().await;
    let mut random = StdRng::seed_from_u64(7);
    let mut stored: Option<SharedTime> = None;
    let mut distances = BTreeSet::new();
    for _ in 0..400 {
        let TimeProposal { time_us: now_us, .. } = time();
        let mut moved = |from: u64| {
            let distance = [0, 40_000, 900_000, 5_000_000, 3_600_000_000, 200_000_000_000]
                [random.random_range(0..6usize)];
            distances.insert(distance);
            let distance = distance + random.random_range(0..1_000);
            if random.random() { from + distance } else { from - distance }
        };
        let before_us = stored.map_or(now_us, |stored| stored.time_us + now_us - stored.store_us.min(now_us));
        let (time_us, machine_us) = (moved(before_us), moved(before_us));
        let proposal = TimeProposal { time_us, machine_us, is_shared: random.random() };
        let alive = store.nodes(&[], member(1), &proposal, AMPLE).await.unwrap();
        let agreed_us = SharedTime::agree(&mut stored, &proposal, alive.now.0 * 1_000 + 500);
        // The server's clock is known to a millisecond.
        let apart_us = agreed_us.abs_diff(alive.region_us);
        assert!(apart_us <= 1_100, "{apart_us}: {proposal:?} on {stored:?} gave {}", alive.region_us);
    }
    assert_eq!(distances.len(), 6);
}

#[tokio::test]
async fn nodes_are_live_while_an_aggregator_reports_them() {
    let (_redis, store) = started().await;
    // The second one owes what the store has lost.
    let (one, two) = (member(1), Member { owes: true, ..member(2) });
    // Less than 3 s may pass between two calls.
    wait::until("both are alive", HEALED, async || {
        assert_eq!(store.nodes(&[A, C], one, &time(), AMPLE).await.unwrap().nodes[..2], [C, A]);
        let alive = store.nodes(&[B], two, &time(), AMPLE).await.unwrap();
        (alive.nodes, alive.aggregators) == (vec![C, A, B], vec![one, two])
    })
    .await
    .unwrap();
    let only_two = async || {
        let alive = store.nodes(&[B], two, &time(), AMPLE).await.unwrap();
        alive.nodes == [B] && alive.aggregators == [two]
    };
    wait::until("nodes that are not reported are dropped", HEALED, only_two).await.unwrap();
    let many: Vec<_> = (0..5_000).map(node).collect();
    wait::until("the newest stay", HEALED, async || {
        assert_eq!(store.nodes(&many, two, &time(), AMPLE).await.unwrap().nodes.len(), 4_096);
        store.nodes(&[B], two, &time(), AMPLE).await.unwrap().nodes.len() == 4_096
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn messages_reach_all_subscribers() {
    let (_redis, store) = started().await;
    let (mut one, mut two) = (store.subscribe(), store.clone().subscribe());
    for listener in [&mut one, &mut two] {
        assert_eq!(timeout(AMPLE, listener.recv()).await.unwrap(), Some(Received::Connected));
    }
    let payloads: [&[u8]; 4] = [b"", b"\0\xff\r\n", b"text", &[7; 100_000]];
    for payload in payloads {
        store.publish(payload, AMPLE).await.unwrap();
        for listener in [&mut one, &mut two] {
            let received = timeout(AMPLE, listener.recv()).await.unwrap();
            assert_eq!(received, Some(Received::Message(payload.to_vec())));
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_does_not_keep_up_is_notified_of_the_gap() {
    let (_redis, store) = started().await;
    let mut slow = store.subscribe();
    assert_eq!(timeout(AMPLE, slow.recv()).await.unwrap(), Some(Received::Connected));
    for _ in 0..3_000 {
        store.publish(b"x", AMPLE).await.unwrap();
    }
    let mut messages = 0;
    while let Received::Message(_) = timeout(AMPLE, slow.recv()).await.unwrap().unwrap() {
        messages += 1;
    }
    assert!(messages < 3_000, "{messages}");
    store.publish(b"later", AMPLE).await.unwrap();
    while timeout(AMPLE, slow.recv()).await.unwrap() != Some(Received::Message(b"later".to_vec())) {}
}
