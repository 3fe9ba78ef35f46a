//! Reports, queries and pushes.

use super::*;
use nodes::OWN_PEER;

#[test]
fn grants_never_exceed_the_limit_and_may_be_repeated() {
    let mut region = region();
    let first = region.query(node(1), &query(0, 6), NOW).unwrap();
    assert!(first.granted);
    assert!(!region.query(node(2), &query(0, 5), NOW).unwrap().granted);
    assert!(
        region.query(node(1), &query(0, 6), NOW).unwrap().granted,
        "counts are absolute, so that a query may be repeated"
    );
    let second = region.query(node(2), &query(0, 4), NOW).unwrap();
    assert!(second.granted);
    assert_eq!(second.current.map(|snapshot| (snapshot.own, snapshot.region_others)), Some((4, 6)));
    assert!(region.query(node(3), &query(0, 0), NOW).unwrap().granted, "cost 0 passes at the limit");
    assert!(!region.query(node(3), &query(0, 1), NOW).unwrap().granted);
}

#[test]
fn a_denied_query_still_merges_the_own_count() {
    let mut region = region();
    assert!(!region.query(node(1), &query(9, 5), NOW).unwrap().granted);
    let snapshot = region.query(node(2), &query(0, 0), NOW).unwrap().current.unwrap();
    assert_eq!((snapshot.own, snapshot.region_others), (0, 9));
}

#[test]
fn a_node_that_evicted_a_cell_receives_its_baseline() {
    let mut region = region();
    region.report(node(1), &[count("k", SEQUENCE, 7)], NOW);
    let without_baseline = wire::Count { without_baseline: true, ..count("k", SEQUENCE, 2) };
    let reported = region.report(node(1), &[without_baseline], NOW);
    assert_eq!(reported.baselines.iter().map(|(_, snapshot)| snapshot.own).collect::<Vec<_>>(), vec![7]);
}

#[test]
fn the_previous_window_counts() {
    let mut region = region();
    region.report(node(1), &[count("k", SEQUENCE - 1, 10)], NOW);
    let half = UnixMs(NOW.0 + CELL_MS / 2);
    assert!(!region.query(node(2), &query(0, 6), half).unwrap().granted);
    assert!(region.query(node(2), &query(0, 5), half).unwrap().granted);
}

#[test]
fn invalid_counts_are_refused_without_effect_on_others() {
    let mut region = region();
    let bad_key = wire::Count { key: vec![1, 2, 3], ..count("k", SEQUENCE, 1) };
    let counts = [
        bad_key,
        count("k", SEQUENCE + 3, 1),
        count("k", SEQUENCE - 3, 1),
        count("k", SEQUENCE, MAX_COUNT + 1),
        count("k", SEQUENCE, 5),
    ];
    let reported = region.report(node(1), &counts, NOW);
    assert_eq!(
        reported.refused,
        vec![(0, Refused::Key), (1, Refused::Sequence), (2, Refused::Sequence), (3, Refused::Component)]
    );
    assert_eq!(region.explain(b"w", b"n", b"k")[0].cells[0].total(), 5);
}

#[test]
fn implausibly_high_counts_are_refused() {
    const MOST: u64 = 60 * MOST_A_SECOND;
    let mut region = region();
    let vast =
        |own, region_others| wire::Count { own, region_others, limit: MAX_COUNT, ..count("k", SEQUENCE, 0) };
    let counts = [vast(MOST, 0), vast(MOST + 1, 0), vast(MAX_COUNT, 0)];
    let refused = region.report(node(1), &counts, NOW).refused;
    assert_eq!(refused, (1..3).map(|place| (place, Refused::Component)).collect::<Vec<_>>());
    assert_eq!(region.explain(b"w", b"n", b"k")[0].cells[0].regional_total(), MOST);
    let query = |own, cost| wire::Query { limit: MAX_COUNT, ..query(own, cost) };
    for (own, cost) in [(MOST, 1), (0, MAX_COUNT), (MAX_COUNT, 0)] {
        assert_eq!(region.query(node(2), &query(own, cost), NOW), Err(Refused::Component), "{own} + {cost}");
    }
    let later = UnixMs(NOW.0 + 2_000);
    assert_eq!(region.report(node(1), &[vast(MOST + 2 * MOST_A_SECOND, 0)], later).refused, vec![]);
}

/// Several nodes may have used more than one can, and what a node has received of them does not make its own count implausible.
#[test]
fn an_implausible_sum_of_the_others_counts_up_to_the_bound_and_keeps_the_own_count() {
    const MOST: u64 = 60 * MOST_A_SECOND;
    for (own, region_others, taken) in [(7, MOST + 1, MOST + 7), (7, u64::MAX, MOST + 7), (0, MOST + 1, MOST)]
    {
        let mut region = region();
        let count = wire::Count { region_others, ..count("k", SEQUENCE, own) };
        assert_eq!(region.report(node(1), &[count], NOW).refused, vec![], "{own} and {region_others}");
        let cell = region.explain(b"w", b"n", b"k")[0].cells[0].clone();
        assert_eq!((cell.component(node(1)), cell.regional_total()), (own, taken));
    }
}

#[test]
fn a_full_region_refuses_new_keys_and_keeps_the_old_ones() {
    let mut region = Region::new(RegionLimits { max_keys: 1, max_nodes: 1 }, HashKey(1, 2));
    let reported = region.report(node(1), &[count("a", SEQUENCE, 6), count("b", SEQUENCE, 1)], NOW);
    assert_eq!(reported.refused, vec![(1, Refused::Full)]);
    assert_eq!(region.report(node(1), &[count("a", SEQUENCE, 7)], NOW).refused, vec![]);
    assert!(region.nodes.received_from(node(1), MonoMs(NOW.0)));
    assert!(!region.nodes.received_from(node(2), MonoMs(NOW.0)));
    assert!(
        region.nodes.received_from(node(2), MonoMs(NOW.0 + 3_600_000)),
        "the first node has sent no frame for an hour"
    );
}

#[test]
fn the_number_of_nodes_of_a_cell_is_bounded_and_existing_ones_stay() {
    let mut region = region();
    let vast = |own| wire::Count { limit: MAX_COUNT, ..count("k", SEQUENCE, own) };
    for one in crowd() {
        assert_eq!(region.report(one, &[vast(2)], NOW).refused, vec![]);
    }
    let late = node(255);
    assert_eq!(region.report(late, &[vast(0), vast(1)], NOW).refused, vec![(1, Refused::Full)]);
    let query = |own, cost| wire::Query { limit: MAX_COUNT, ..query(own, cost) };
    assert_eq!(
        region.query(late, &query(1, 0), NOW),
        Err(Refused::Full),
        "its own count could not be stored"
    );
    assert_eq!(region.query(late, &query(0, 1), NOW), Err(Refused::Full), "its grant could not be stored");
    let first = crowd().next().unwrap();
    assert_eq!(region.report(first, &[vast(5)], NOW).refused, vec![]);
    let cell = region.explain(b"w", b"n", b"k")[0].cells[0].clone();
    assert_eq!(cell.components.len(), MAX_NODES_A_KEY);
    assert_eq!(cell.regional_total(), 2 * MAX_NODES_A_KEY as u64 + 3);
    let next = wire::Count { sequence: SEQUENCE + 1, ..vast(1) };
    assert_eq!(region.report(late, &[next], NOW).refused, vec![], "the next cell has room");
}

#[test]
fn a_peer_that_invents_nodes_leaves_room_in_a_cell_to_the_nodes_of_others() {
    let mut region = region();
    let count = |own| wire::Count { limit: MAX_COUNT, ..count("k", SEQUENCE, own) };
    // Each node leaves before the next one comes.
    let mut joins = |number: u128, peer: u64| {
        let node = NodeId(number.to_be_bytes());
        assert!(region.nodes.admit(node, peer, MonoMs(NOW.0)));
        let is_taken = region.report(node, &[count(1)], NOW).refused.is_empty();
        region.nodes.remove(node);
        is_taken
    };
    let mut number = 1;
    let mut fill = |peer: u64| {
        let taken = (0..5_000).take_while(|_| {
            number += 1;
            joins(number, peer)
        });
        taken.count()
    };
    assert_eq!([7, 8, 9].map(&mut fill), [MAX_NODES_A_KEY / 4 * 3, MAX_NODES_A_KEY / 16 * 3, 192]);
}

#[test]
fn the_number_of_followers_of_a_key_is_bounded() {
    let mut region = region();
    for one in crowd() {
        region.report(one, &[count("k", SEQUENCE, 0)], NOW);
    }
    let (early, late) = (crowd().next().unwrap(), node(255));
    for one in [early, late] {
        region.subscribe(one);
        region.report(one, &[count("k", SEQUENCE, 0)], NOW);
        pushed(&mut region, one, NOW);
    }
    region.report(node(254), &[count("k", SEQUENCE, 1)], NOW);
    assert_eq!(pushed(&mut region, early, NOW).0, vec![(SEQUENCE, 0, 1)]);
    assert_eq!(pushed(&mut region, late, NOW).0, vec![], "it is not a follower");
    region.report(node(254), &[count("k", SEQUENCE, 6)], NOW);
    assert_eq!(
        pushed(&mut region, late, NOW).0,
        vec![(SEQUENCE, 0, 6)],
        "a hot key is pushed to all subscribers"
    );
    let later = UnixMs(NOW.0 + 2 * CELL_MS);
    region.tick(later);
    region.report(late, &[count("k", SEQUENCE + 2, 0)], later);
    region.report(node(254), &[count("k", SEQUENCE + 2, 1)], later);
    assert_eq!(pushed(&mut region, late, later).0, vec![(SEQUENCE + 2, 0, 1)], "there is room again");
}

#[test]
fn changes_are_pushed_to_followers_and_those_of_hot_keys_to_all() {
    let mut region = region();
    for n in 1..=3 {
        region.subscribe(node(n));
        assert_eq!(pushed(&mut region, node(n), NOW), (vec![], true));
    }
    region.report(node(1), &[count("k", SEQUENCE, 1)], NOW);
    region.report(node(2), &[count("k", SEQUENCE, 2)], NOW);
    assert_eq!(pushed(&mut region, node(1), NOW).0, vec![(SEQUENCE, 1, 2)]);
    assert_eq!(
        pushed(&mut region, node(2), NOW).0,
        vec![(SEQUENCE, 2, 1)],
        "a new follower of a key that others use"
    );
    assert_eq!(pushed(&mut region, node(3), NOW).0, vec![], "it is no follower, and the key is not hot");
    region.report(node(1), &[count("k", SEQUENCE, 4)], NOW);
    assert_eq!(pushed(&mut region, node(3), NOW).0, vec![(SEQUENCE, 0, 6)], "past half the limit");
    assert_eq!(pushed(&mut region, node(1), NOW).0, vec![], "its own change is not pushed to it");
}

#[test]
fn a_subscriber_receives_a_snapshot_marked_as_complete_at_its_end() {
    let mut region = region();
    region.report(node(1), &[count("touched", SEQUENCE, 1), count("other", SEQUENCE, 1)], NOW);
    region.report(node(2), &[count("touched", SEQUENCE, 2), count("hot", SEQUENCE, 9)], NOW);
    region.subscribe(node(2));
    let (mut snapshots, complete) = pushed(&mut region, node(2), NOW);
    snapshots.sort();
    assert_eq!((snapshots, complete), (vec![(SEQUENCE, 2, 1), (SEQUENCE, 9, 0)], true));
    assert!(!region.has_push(node(2)));
}

#[test]
fn keys_are_dropped_two_windows_later() {
    let mut region = region();
    region.report(node(1), &[count("k", SEQUENCE, 1)], NOW);
    region.tick(UnixMs(NOW.0 + 2 * CELL_MS - 1));
    assert_eq!(region.stats(MonoMs(NOW.0)).keys, 1);
    region.tick(UnixMs(NOW.0 + 2 * CELL_MS));
    assert_eq!(region.stats(MonoMs(NOW.0)).keys, 0);
}

#[test]
fn many_keys_are_pushed_and_dropped_in_steps() {
    const MANY: usize = 10_000;
    let mut region = region();
    let counts: Vec<_> = (0..MANY).map(|n| count(&std::format!("k{n}"), SEQUENCE, 1)).collect();
    region.report(node(1), &counts, NOW);
    region.subscribe(node(1));
    let (snapshots, complete) = pushed(&mut region, node(1), NOW);
    assert_eq!((snapshots.len(), complete), (MANY, true));
    let later = UnixMs(NOW.0 + 2 * CELL_MS);
    assert!(region.tick(later), "there are keys left for another step");
    assert!(region.stats(MonoMs(later.0)).keys > 0);
    while region.tick(later) {}
    assert_eq!(region.stats(MonoMs(later.0)).keys, 0);
    region.report(node(1), &[count("k", SEQUENCE + 2, 1)], later);
    assert_eq!(region.stats(MonoMs(later.0)).keys, 1, "slots are reused");
}

#[test]
fn a_key_in_use_stays_and_its_old_cells_are_dropped() {
    let mut region = region();
    for step in 0..10 {
        let now = UnixMs(NOW.0 + step * CELL_MS);
        region.report(node(1), &[count("k", SEQUENCE + step, 1)], now);
        region.tick(now);
        assert!(region.explain(b"w", b"n", b"k")[0].cells.len() <= 3, "at step {step}");
    }
    assert_eq!(region.stats(MonoMs(NOW.0)).keys, 1);
}

#[test]
fn a_peer_that_invents_nodes_leaves_places_to_others() {
    let mut nodes = Nodes::new(16);
    let admitted = |nodes: &mut Nodes, peer: u8| {
        (0..16).filter(|n| nodes.admit(node(16 * peer + n), peer.into(), MonoMs(0))).count()
    };
    assert_eq!([1, 2, 3].map(|peer| admitted(&mut nodes, peer)), [12, 3, 1], "three times what is free");
    assert_eq!(admitted(&mut nodes, 4), 0);
    assert!(nodes.admit(node(16), 1, MonoMs(0)), "it has a place");
    assert!(nodes.admit(node(0), OWN_PEER, MonoMs(0)), "the aggregator's own node always has one");
    nodes.remove(node(16));
    nodes.remove(node(17));
    assert_eq!(admitted(&mut nodes, 4), 1);
    assert!(nodes.admit(node(99), 1, MonoMs(3_600_000)), "the others have sent no frame for an hour");
}

#[test]
fn nodes_are_alive_for_a_while_after_their_last_frame() {
    let mut region = region();
    assert!(
        region.nodes.received_from(node(1), MonoMs(5_000))
            && region.nodes.received_from(node(2), MonoMs(6_000))
    );
    assert!(!region.nodes.count(node(3), 1), "it has sent no frame");
    assert!(region.nodes.count(node(1), 1) && region.nodes.count(node(2), 1));
    assert_eq!(region.nodes.alive(MonoMs(6_000)), 2);
    assert_eq!(region.nodes.alive(MonoMs(7_001)), 1);
    region.gone(node(2));
    assert_eq!(region.nodes.alive(MonoMs(5_000)), 1);
}

#[test]
fn imports_count_as_global_and_only_grow() {
    let mut region = region();
    region.report(node(1), &[count("k", SEQUENCE, 1)], NOW);
    other(&mut region, &key("k"), SEQUENCE, 8, NOW).unwrap();
    other(&mut region, &key("k"), SEQUENCE, 3, NOW).unwrap();
    let answer = region.query(node(1), &query(1, 2), NOW).unwrap();
    assert!(!answer.granted);
    assert_eq!(answer.current.map(|snapshot| snapshot.global_others), Some(8));
    assert!(region.query(node(1), &query(1, 1), NOW).unwrap().granted);
}
