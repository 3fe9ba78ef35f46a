//! A lower bound in the store, which all aggregators of a region have lost together with their memory.

use super::*;

const LIMIT: u64 = 1_000;

/// Aggregators that know what the region had published of `k`.
fn restored(count: u64) -> [Region; 2] {
    [(); 2].map(|()| {
        let mut region = backed();
        let stored = exchange::Stored { key: key("k"), sequence: SEQUENCE, count, limit: LIMIT };
        region.recover(&stored, true, NOW).unwrap();
        region
    })
}

/// How many of 1 000 queries of `node`, which has used `own`, are granted.
fn granted(region: &mut Region, store: &mut Store, node: NodeId, own: u64) -> u64 {
    let passes = |own: &u64| {
        let query = wire::Query { limit: LIMIT, ..query(*own, 1) };
        match region.propose(node, &query, NOW).unwrap() {
            Proposed::Settled(answer) => answer.granted,
            Proposed::Query(merge) => {
                let merged = store.merge(&merge);
                region.concluded(node, &query, &merge, &merged, NOW).unwrap().granted
            }
        }
    };
    (own..LIMIT).take_while(passes).count() as u64
}

fn reports(region: &mut Region, store: &mut Store, node: NodeId, own: u64) {
    let count = wire::Count { limit: LIMIT, ..count("k", SEQUENCE, own) };
    assert_eq!(region.report(node, &[count], NOW).refused, vec![]);
    for merge in region.next_merges(9) {
        let merged = store.merge(&merge);
        region.merged(&merge, &merged, NOW);
    }
}

fn total(region: &mut Region, store: &mut Store) -> u64 {
    // A query with a cost of 0 reads the store.
    let query = wire::Query { limit: LIMIT, ..query(0, 0) };
    let Proposed::Query(merge) = region.propose(node(8), &query, NOW).unwrap() else { panic!() };
    let merged = store.merge(&merge);
    region.concluded(node(8), &query, &merge, &merged, NOW).unwrap();
    cell(region).regional_total()
}

#[test]
fn what_one_aggregator_grants_above_it_is_not_granted_by_another() {
    let (mut store, [mut one, mut other]) = (Store::default(), restored(600));
    let passed = granted(&mut one, &mut store, node(1), 0)
        + granted(&mut other, &mut store, node(2), 0)
        + granted(&mut one, &mut store, node(3), 0);
    assert_eq!(passed, 400);
    // An aggregator that had no evidence receives it with the first answer.
    let mut third = backed();
    assert_eq!(granted(&mut third, &mut store, node(4), 0), 0);
    assert_eq!(rows(&mut third), vec![]);
}

#[test]
fn what_nodes_of_several_aggregators_report_above_it_adds_up() {
    let (mut store, [mut one, mut other]) = (Store::default(), restored(600));
    for (region, writer) in [(&mut one, 1), (&mut other, 2)] {
        let query = wire::Query { limit: LIMIT, ..query(5, 0) };
        let Proposed::Query(merge) = region.propose(node(writer), &query, NOW).unwrap() else { panic!() };
        let merged = store.merge(&merge);
        region.concluded(node(writer), &query, &merge, &merged, NOW).unwrap();
    }
    for own in [15, 25, 35] {
        reports(&mut one, &mut store, node(1), own);
        reports(&mut other, &mut store, node(2), own);
    }
    assert_eq!((total(&mut one, &mut store), total(&mut other, &mut store)), (660, 660));
    // What returns is in the lower bound already.
    reports(&mut other, &mut store, node(3), 300);
    assert_eq!((total(&mut one, &mut store), total(&mut other, &mut store)), (660, 660));
    for region in [&mut one, &mut other] {
        for lower_bound in region.end_grace_period(NOW) {
            let merged = store.raise_to(&lower_bound);
            region.floored(&lower_bound, &merged, region.store_incarnation(), NOW);
        }
    }
    let at = (key("k"), SEQUENCE);
    assert_eq!(store.cells[&at].values().sum::<u64>(), 660);
    assert_eq!(granted(&mut one, &mut store, node(1), 35), 340);
}
