//! What is written to the regional store, and how its answers are merged.

use super::*;
use crate::model::wire::Part as WirePart;

fn report(region: &mut Region, by: u8, own: u64) {
    assert_eq!(region.report(node(by), &[count("k", SEQUENCE, own)], NOW).refused, vec![]);
}

fn sequences(merges: &[Merge]) -> Vec<(u64, Vec<Part>)> {
    merges.iter().map(|merge| (merge.sequence, merge.parts.clone())).collect()
}

#[test]
fn nothing_waits_without_a_store() {
    let mut region = region();
    report(&mut region, 1, 9);
    assert!(!region.has_merges() && region.next_merges(9).is_empty() && region.next_hot(9).is_empty());
    region.store_wiped();
    assert!(!region.has_merges());
}

#[test]
fn a_cell_is_written_once_until_it_changes() {
    let mut region = backed();
    report(&mut region, 1, 3);
    report(&mut region, 1, 4);
    let merges = region.next_merges(9);
    assert_eq!(sequences(&merges), vec![(SEQUENCE, vec![(node(1), 4)])]);
    assert!(region.next_merges(9).is_empty());
    took(&mut region, &merges[0]);
    assert!(region.next_merges(9).is_empty(), "the store holds it");
    report(&mut region, 1, 4);
    report(&mut region, 1, 2);
    assert!(!region.has_merges(), "a report that changes nothing causes no call");
    report(&mut region, 2, 1);
    assert_eq!(sequences(&region.next_merges(9)), vec![(SEQUENCE, vec![(node(2), 1)])], "only the new count");
}

#[test]
fn a_cell_that_grew_while_it_was_written_is_written_again() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merges = region.next_merges(9);
    report(&mut region, 1, 5);
    took(&mut region, &merges[0]);
    assert_eq!(sequences(&region.next_merges(9)), vec![(SEQUENCE, vec![(node(1), 5)])]);
}

#[test]
fn a_cell_that_was_not_written_waits_again() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merges = region.next_merges(9);
    region.merge_failed(&merges);
    assert!(region.has_merges());
    assert_eq!(region.next_merges(9), merges);
}

#[test]
fn answers_out_of_order_lose_nothing() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let first = region.next_merges(9).remove(0);
    report(&mut region, 2, 4);
    let second = region.next_merges(9).remove(0);
    region.merged(&second, &holding(&[(node(1), 3), (node(2), 4)]), NOW);
    region.merged(&first, &holding(&[(node(1), 3)]), NOW);
    assert_eq!(parts(&cell(&region)), vec![(node(1), 3), (node(2), 4)]);
    assert_eq!(
        sequences(&region.next_merges(9)),
        vec![(SEQUENCE, vec![(node(2), 4)])],
        "the cell is written once more to be safe"
    );
}

#[test]
fn a_node_that_reports_to_another_aggregator_gets_pushes_where_it_subscribes() {
    let subscribed = || {
        let mut region = backed();
        assert!(region.nodes.received_from(node(1), MonoMs(NOW.0)));
        region.subscribe(node(1));
        pushed(&mut region, node(1), NOW);
        region
    };
    // Far below half of its limit, so that it is not pushed to all subscribers.
    let mut by_message = subscribed();
    by_message.learn(&key("k"), SEQUENCE, 100, &[(node(1), 3)], NOW).unwrap();
    by_message.learn(&key("k"), SEQUENCE, 100, &[(node(2), 4)], NOW).unwrap();
    assert_eq!(pushed(&mut by_message, node(1), NOW).0, vec![(SEQUENCE, 3, 4)]);

    let mut by_the_store = subscribed();
    report(&mut by_the_store, 2, 1);
    let merge = by_the_store.next_merges(9).remove(0);
    by_the_store.merged(&merge, &holding(&[(node(1), 1), (node(2), 1)]), NOW);
    assert_eq!(pushed(&mut by_the_store, node(1), NOW).0, vec![(SEQUENCE, 1, 1)]);
}

#[test]
fn a_wipe_voids_every_mark() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    region.store_wiped();
    assert!(region.has_merges());
    let again = region.next_merges(9);
    assert_eq!(sequences(&again), vec![(SEQUENCE, vec![(node(1), 3)])]);
    assert!(again[0].wants_previous, "the new incarnation has not returned its cells yet");
}

#[test]
fn components_missing_from_an_answer_are_written_again() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    report(&mut region, 2, 1);
    let merge = region.next_merges(9).remove(0);
    region.merged(&merge, &holding(&[(node(2), 1)]), NOW);
    assert_eq!(sequences(&region.next_merges(9)), vec![(SEQUENCE, vec![(node(1), 3)])]);
}

#[test]
fn the_first_answer_contains_the_cell_before() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merge = region.next_merges(9).remove(0);
    assert!(merge.wants_previous);
    let previous = vec![vec![(node(2), 8)]];
    region.merged(&merge, &Merged { previous, ..holding(&[(node(1), 3), (node(3), 2)]) }, NOW);
    assert_eq!(parts(&cell(&region)), vec![(node(1), 3), (node(3), 2)]);
    assert_eq!(parts(&cell_of(&region, "k", SEQUENCE - 1)), vec![(node(2), 8)]);
    assert!(!region.has_merges(), "the store holds all of it");
    report(&mut region, 1, 4);
    assert!(!region.next_merges(9)[0].wants_previous);
}

#[test]
fn many_cells_are_written_again_in_steps() {
    const MANY: u64 = 10_000;
    let mut region = backed();
    let counts: Vec<_> = (0..MANY).map(|n| count(&std::format!("k{n}"), SEQUENCE, 1)).collect();
    region.report(node(1), &counts, NOW);
    let mut written = 0;
    for wiped in [false, true] {
        if wiped {
            region.store_wiped();
        }
        while region.has_merges() {
            let merges = region.next_merges(1_000);
            merges.iter().for_each(|merge| took(&mut region, merge));
            written += merges.len() as u64;
        }
    }
    assert_eq!(written, 2 * MANY);
}

#[test]
fn only_what_the_store_holds_is_shared_with_peers() {
    let mut region = backed();
    region.nodes.received_from(node(1), MonoMs(NOW.0));
    report(&mut region, 1, 6);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    report(&mut region, 1, 7);
    let changes = region.next_changes(9);
    assert_eq!(changes.len(), 1);
    let six = WirePart { node: node(1).0.to_vec(), own: 6 };
    assert_eq!(
        changes[0].parts,
        vec![six],
        "a peer assumes that the store holds it, so 7 would be lost with this aggregator"
    );
    assert_eq!(changes[0].limit, 10);
}

#[test]
fn counts_of_a_disconnected_envoy_are_shared_with_peers() {
    let mut region = backed();
    region.nodes.received_from(node(1), MonoMs(NOW.0));
    report(&mut region, 1, 6);
    region.gone(node(1));
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    assert_eq!(region.next_changes(9)[0].parts.len(), 1);
}

#[test]
fn a_cell_is_shared_if_several_nodes_use_it() {
    // (users of this cell, users of the cell before) → shared
    type Case = (&'static [u8], &'static [u8], bool);
    let cases: [Case; 5] = [
        (&[1, 2], &[], true),
        (&[1], &[], false),
        (&[1], &[1], false),
        (&[1], &[2], true),
        (&[1], &[1, 2], true),
    ];
    for (users, before, expected) in cases {
        let mut region = backed();
        for by in before {
            region.report(node(*by), &[count("k", SEQUENCE - 1, 1)], NOW);
        }
        users.iter().for_each(|by| report(&mut region, *by, 1));
        let merges = region.next_merges(9);
        for merge in merges.iter().filter(|merge| merge.sequence == SEQUENCE) {
            took(&mut region, merge);
        }
        let shared = region.next_changes(9).iter().any(|change| change.sequence == SEQUENCE);
        assert_eq!(shared, expected, "{users:?} {before:?}");
    }
}

#[test]
fn a_subscriber_that_comes_from_another_aggregator_receives_what_was_pushed_there() {
    let (mut old, mut new) = (backed(), backed());
    for by in [node(1), node(2)] {
        old.subscribe(by);
        pushed(&mut old, by, NOW);
    }
    // Another worker of the first node reports to the new aggregator.
    report(&mut new, 1, 1);
    let merge = new.next_merges(9).remove(0);
    took(&mut new, &merge);
    // The second node's count is pushed on a stream that is stalled and later ends.
    report(&mut old, 2, 1);
    let merge = old.next_merges(9).remove(0);
    old.merged(&merge, &holding(&[(node(1), 1), (node(2), 1)]), NOW);
    assert_eq!(pushed(&mut old, node(1), NOW).0, vec![(SEQUENCE, 1, 1)]);
    for change in old.next_changes(9) {
        let part = |part: &WirePart| (NodeId(part.node.as_slice().try_into().unwrap()), part.own);
        let parts: Vec<Part> = change.parts.iter().map(part).collect();
        new.learn(&key("k"), change.sequence, change.limit, &parts, NOW).unwrap();
    }
    new.subscribe(node(1));
    assert_eq!(pushed(&mut new, node(1), NOW).0, vec![(SEQUENCE, 1, 1)]);
}

#[test]
fn a_hot_cell_is_named_once_in_each_incarnation() {
    let mut region = backed();
    report(&mut region, 1, 5);
    assert!(region.next_hot(9).is_empty(), "half is not past half");
    report(&mut region, 1, 6);
    let hot = region.next_hot(9);
    assert_eq!((hot.len(), hot[0].utilisation), (1, 600));
    report(&mut region, 1, 7);
    assert!(region.next_hot(9).is_empty());
    region.hot_failed(&hot);
    assert_eq!(region.next_hot(9).len(), 1);
    region.store_wiped();
    region.next_merges(9);
    assert_eq!(region.next_hot(9).len(), 1);
}

#[test]
fn the_store_decides_a_query() {
    let mut region = backed();
    report(&mut region, 1, 4);
    let query = query(0, 6);
    let Proposed::Query(merge) = region.propose(node(2), &query, NOW).unwrap() else { panic!() };
    let proposal = merge.proposal.unwrap();
    assert_eq!((proposal.own, proposal.limit, proposal.covered_ms), (6, 10, CELL_MS));
    assert_eq!(merge.parts, vec![(node(1), 4), (node(2), 0)], "components stored here are repeated");
    let refused = Merged { granted: Some(false), ..holding(&[(node(1), 4), (node(3), 5), (node(2), 0)]) };
    let answer = region.concluded(node(2), &query, &merge, &refused, NOW).unwrap();
    assert!(!answer.granted);
    assert_eq!(answer.current.map(|snapshot| (snapshot.own, snapshot.region_others)), Some((0, 9)));
}

#[test]
fn what_an_answer_has_of_others_is_pushed_too_as_the_answer_may_come_too_late() {
    let mut region = backed();
    region.subscribe(node(1));
    pushed(&mut region, node(1), NOW);
    let mut asks = |own, held: &[Part], before: &[Part]| {
        let query = query(own, 1);
        let Proposed::Query(merge) = region.propose(node(1), &query, NOW).unwrap() else { panic!() };
        let previous = vec![before.to_vec()];
        let merged = Merged { granted: Some(true), previous, ..holding(held) };
        region.concluded(node(1), &query, &merge, &merged, NOW).unwrap();
        pushed(&mut region, node(1), NOW).0
    };
    let [one, two] = [node(1), node(2)];
    assert_eq!(asks(0, &[(one, 1)], &[]), vec![], "only its own count grew");
    assert_eq!(asks(1, &[(one, 2), (two, 4)], &[]), vec![(SEQUENCE, 2, 4)]);
    assert_eq!(asks(2, &[(one, 3), (two, 4)], &[]), vec![], "it was pushed before");
    let both = vec![(SEQUENCE - 1, 0, 5), (SEQUENCE, 4, 4)];
    assert_eq!(asks(3, &[(one, 4), (two, 4)], &[(two, 5)]), both);
}

#[test]
fn counts_that_a_denied_query_wrote_to_the_store_are_shared_with_peers() {
    let mut region = backed();
    let query = query(3, 6);
    let Proposed::Query(merge) = region.propose(node(1), &query, NOW).unwrap() else { panic!() };
    let refused = Merged { granted: Some(false), ..holding(&[(node(1), 3), (node(2), 5)]) };
    region.concluded(node(1), &query, &merge, &refused, NOW).unwrap();
    assert!(!region.has_merges(), "stored");
    assert_eq!(region.next_changes(9).len(), 1);
}

#[test]
fn a_denial_that_is_certain_needs_no_store() {
    let mut region = backed();
    report(&mut region, 1, 9);
    assert!(matches!(region.propose(node(2), &query(0, 2), NOW), Ok(Proposed::Settled(_))));
    assert!(
        matches!(region.propose(node(2), &query(0, 0), NOW), Ok(Proposed::Query(_))),
        "a query with cost 0 goes to the store"
    );
}

#[test]
fn a_node_without_room_in_a_cell_cannot_propose() {
    let mut region = backed();
    for one in crowd() {
        region.report(one, &[wire::Count { limit: MAX_COUNT, ..count("k", SEQUENCE, 1) }], NOW);
    }
    let query = wire::Query { limit: MAX_COUNT, ..query(0, 1) };
    assert_eq!(
        region.propose(node(255), &query, NOW),
        Err(Refused::Full),
        "its grant could not be stored here"
    );
}

fn without_baseline(region: &mut Region) -> wire::Snapshot {
    let count = wire::Count { without_baseline: true, ..count("k", SEQUENCE, 1) };
    region.report(node(1), &[count], NOW).baselines.remove(0).1
}

#[test]
fn a_baseline_is_sent_only_after_the_store_has_returned_all_it_holds() {
    let mut region = backed();
    let wanted = without_baseline(&mut region);
    assert_eq!(region.baseline(node(1), &wanted), None);
    region.learn(&key("k"), SEQUENCE, 10, &[(node(2), 3)], NOW).unwrap();
    assert_eq!(
        region.baseline(node(1), &wanted),
        None,
        "a change from another aggregator contains only a part"
    );
    let cold = wire::Query { without_baseline: true, ..query(0, 0) };
    assert_eq!(region.query(node(1), &cold, NOW), Err(Refused::Baseline));
    assert!(
        region.query(node(1), &query(0, 0), NOW).is_ok(),
        "a node that has its own count needs no baseline"
    );
    let merge = region.next_merges(9).remove(0);
    region.merged(&merge, &holding(&[(node(1), 7), (node(2), 3)]), NOW);
    assert_eq!(
        region.baseline(node(1), &wanted).map(|snapshot| (snapshot.own, snapshot.region_others)),
        Some((7, 3))
    );
}

#[test]
fn the_store_is_queried_again_for_each_baseline() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    // Another worker of the same Envoy reports 7 through another aggregator, then the process evicts the cell.
    let wanted = without_baseline(&mut region);
    assert_eq!(region.baseline(node(1), &wanted), None);
    let merge = region.next_merges(9).remove(0);
    region.merged(&merge, &holding(&[(node(1), 7)]), NOW);
    assert_eq!(region.baseline(node(1), &wanted).map(|snapshot| snapshot.own), Some(7));
}

#[test]
fn answers_for_ended_cells_create_no_cells() {
    let mut region = backed();
    report(&mut region, 1, 3);
    let merge = region.next_merges(9).remove(0);
    let later = UnixMs(NOW.0 + 3 * CELL_MS);
    region.report(node(1), &[count("k", SEQUENCE + 3, 1)], later);
    region.tick(later);
    region.merged(&merge, &holding(&merge.parts), later);
    let explained = region.explain(b"w", b"n", b"k");
    assert_eq!(explained[0].cells.iter().map(|cell| cell.sequence).collect::<Vec<_>>(), vec![SEQUENCE + 3]);
}

#[test]
fn the_reported_number_of_windows_is_that_of_cells() {
    let mut region = backed();
    region.witness(key("seen").as_bytes(), SEQUENCE, 4, NOW).unwrap();
    other(&mut region, &key("imported"), SEQUENCE, 4, NOW).unwrap();
    for step in 0..12 {
        let now = UnixMs(NOW.0 + step * CELL_MS);
        region.report(node(1), &[count("k", SEQUENCE + step + 2, 1), count("k", SEQUENCE + step, 1)], now);
        if step % 6 == 5 {
            region.tick(now);
        }
    }
    let cells = region.explain(b"w", b"n", b"k")[0].cells.len() as u64;
    assert_eq!(region.stats(MonoMs(NOW.0)).windows, cells);
    while region.stats(MonoMs(NOW.0)).keys > 0 {
        region.tick(UnixMs(NOW.0 + 100 * CELL_MS));
    }
    assert_eq!(region.stats(MonoMs(NOW.0)).windows, 0);
}

#[test]
fn a_limit_that_arrives_late_and_makes_a_cell_hot_causes_pushes_to_all() {
    let mut region = backed();
    region.subscribe(node(9));
    pushed(&mut region, node(9), NOW);
    region.learn(&key("k"), SEQUENCE, u64::MAX, &[(node(1), 8)], NOW).unwrap();
    assert_eq!(pushed(&mut region, node(9), NOW).0, vec![]);
    region.learn(&key("k"), SEQUENCE, 10, &[(node(1), 8)], NOW).unwrap();
    assert_eq!(pushed(&mut region, node(9), NOW).0, vec![(SEQUENCE, 0, 8)]);
}

#[test]
fn a_lower_limit_reaches_the_store_and_the_peers_though_nothing_has_grown() {
    let under = |limit, applied_ms| wire::Count { limit, applied_ms, ..count("k", SEQUENCE, 30) };
    let mut region = backed();
    assert!(region.nodes.received_from(node(1), MonoMs(NOW.0)));
    region.report(node(1), &[under(100, NOW.0 - 9)], NOW);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    assert_eq!(region.next_changes(9), vec![]);
    region.report(node(1), &[under(40, NOW.0 - 5)], NOW);
    let merge = region.next_merges(9).remove(0);
    assert_eq!((merge.limit, merge.parts.as_slice()), (40, &[][..]));
    region.merged(&merge, &Merged { limit: 40, ..holding(&[(node(1), 30)]) }, NOW);
    let change = region.next_changes(9).remove(0);
    assert_eq!((change.limit, change.newest_limit, change.applied_ms), (40, 40, NOW.0 - 5));
    // A raise changes nothing in the store, and the peers receive it with the next change.
    region.report(node(1), &[wire::Count { own: 31, ..under(90, NOW.0 - 2) }], NOW);
    let merge = region.next_merges(9).remove(0);
    assert_eq!(merge.limit, 40);
    took(&mut region, &merge);
    let change = region.next_changes(9).remove(0);
    assert_eq!((change.limit, change.newest_limit, change.applied_ms), (40, 90, NOW.0 - 2));
}
