//! What is restored after all counts were lost.

use super::exchange::LowerBound;
use super::*;

fn lower_bounds(region: &mut Region) -> Vec<(u64, u64)> {
    region.end_grace_period(NOW).iter().map(|lower_bound| (lower_bound.sequence, lower_bound.total)).collect()
}

#[test]
fn the_others_use_that_a_filter_reports_counts_at_once_as_a_lower_bound() {
    let mut region = region();
    let count = wire::Count { region_others: 6, ..count("k", SEQUENCE, 3) };
    region.report(node(1), &[count], NOW);
    assert_eq!((cell(&region).regional_total(), parts(&cell(&region))), (9, vec![(node(1), 3)]));
    assert!(!region.query(node(2), &query(0, 2), NOW).unwrap().granted);
    region.report(node(3), &[super::count("k", SEQUENCE, 6)], NOW);
    assert_eq!(cell(&region).regional_total(), 9, "the components have reached the lower bound");
}

#[test]
fn a_query_is_answered_with_the_others_use_without_its_own() {
    let (mut region, mut backed) = (region(), backed());
    let query_of_own = query(6, 0);
    region.witness(key("k").as_bytes(), SEQUENCE, 10, NOW).unwrap();
    backed.witness(key("k").as_bytes(), SEQUENCE, 10, NOW).unwrap();
    let Proposed::Query(merge) = backed.propose(node(1), &query_of_own, NOW).unwrap() else { panic!() };
    let merged = holding(&merge.parts);
    let answers = [
        region.query(node(1), &query_of_own, NOW).unwrap(),
        backed.concluded(node(1), &query_of_own, &merge, &merged, NOW).unwrap(),
    ];
    for answer in answers {
        let snapshot = answer.current.unwrap();
        assert_eq!((snapshot.own, snapshot.region_others), (6, 4));
    }
    region.report(node(1), &[count("k", SEQUENCE, 8)], NOW);
    assert_eq!(cell(&region).regional_total(), 12, "later use adds to the evidence");
    // The evicted count of this process is contained in the evidence only.
    let evicted = wire::Query { without_baseline: true, ..query(0, 0) };
    let snapshot = region.query(node(2), &evicted, NOW).unwrap().current.unwrap();
    assert_eq!((snapshot.own, snapshot.region_others), (0, 12));
}

#[test]
fn the_use_that_no_component_accounts_for_becomes_the_baseline_once() {
    let mut region = region();
    region.witness(key("k").as_bytes(), SEQUENCE, 7, NOW).unwrap();
    region.report(node(1), &[count("k", SEQUENCE, 3)], NOW);
    let lower_bounds = region.end_grace_period(NOW);
    region.settle(&lower_bounds, NOW);
    assert_eq!(parts(&cell(&region)), vec![(BASELINE, 4), (node(1), 3)]);
    region.report(node(1), &[count("k", SEQUENCE, 5)], NOW);
    assert_eq!(cell(&region).regional_total(), 9, "new use adds to it");
    region.settle(&[LowerBound { total: 20, ..lower_bounds[0].clone() }], NOW);
    region.witness(key("k").as_bytes(), SEQUENCE, 20, NOW).unwrap();
    assert_eq!(region.end_grace_period(NOW), vec![]);
    region.settle(&lower_bounds, NOW);
    assert_eq!(cell(&region).component(BASELINE), 4, "the baseline is set once");
    assert_eq!(cell(&region).regional_total(), 20, "more evidence still raises the lower bound");
}

#[test]
fn the_baseline_of_a_key_is_pushed_to_all_its_followers() {
    let mut region = region();
    region.subscribe(node(1));
    region.report(node(1), &[count("k", SEQUENCE, 3)], NOW);
    region.witness(key("k").as_bytes(), SEQUENCE, 7, NOW).unwrap();
    pushed(&mut region, node(1), NOW);
    let lower_bounds = region.end_grace_period(NOW);
    region.settle(&lower_bounds, NOW);
    assert_eq!(pushed(&mut region, node(1), NOW).0, vec![(SEQUENCE, 3, 4)]);
}

#[test]
fn no_baseline_is_set_if_components_reach_the_lower_bound() {
    let mut region = region();
    region.witness(key("k").as_bytes(), SEQUENCE, 7, NOW).unwrap();
    let late = LowerBound { key: key("k"), sequence: SEQUENCE, total: 7, expires: NOW };
    region.report(node(1), &[count("k", SEQUENCE, 7)], NOW);
    assert_eq!(lower_bounds(&mut region), vec![]);
    region.settle(&[late], NOW);
    assert!(!cell(&region).has_baseline(), "an empty baseline would prevent a later one");
}

#[test]
fn cells_that_began_after_the_loss_get_no_baseline() {
    let mut region = region();
    region.witness(key("k").as_bytes(), SEQUENCE, 7, NOW).unwrap();
    region.witness(key("k").as_bytes(), SEQUENCE - 1, 8, NOW).unwrap();
    let early = region.end_grace_period(UnixMs(NOW.0 - 1));
    assert_eq!(early.iter().map(|lower_bound| lower_bound.sequence).collect::<Vec<_>>(), vec![SEQUENCE - 1]);
    assert_eq!(lower_bounds(&mut region).last(), Some(&(SEQUENCE, 7)), "it waits for the next grace period");
}

#[test]
fn a_lower_bound_never_exceeds_the_highest_count() {
    let mut region = region();
    region.witness(key("k").as_bytes(), SEQUENCE, u64::MAX, NOW).unwrap();
    assert_eq!(cell(&region).regional_total(), MAX_COUNT);
}

#[test]
fn the_baseline_is_published_with_the_rest_and_goes_to_the_store() {
    let mut region = one_of(1);
    region.attach_store();
    region.witness(key("k").as_bytes(), SEQUENCE, 7, NOW).unwrap();
    assert!(rows(&mut region).is_empty(), "a lower bound is not published");
    let lower_bounds = region.end_grace_period(NOW);
    region.settle(&lower_bounds, NOW);
    region.report(node(1), &[count("k", SEQUENCE, 1)], NOW);
    assert_eq!(rows(&mut region)[0].count, 8);
    let merges = region.next_merges(9);
    assert!(merges[0].parts.contains(&(BASELINE, 7)));
}

#[test]
fn counts_that_wait_to_be_written_to_the_store_are_not_lost() {
    let mut region = backed();
    region.witness(key("k").as_bytes(), SEQUENCE, 9, NOW).unwrap();
    region.report(node(1), &[count("k", SEQUENCE, 2)], NOW);
    let merge = region.next_merges(9).remove(0);
    took(&mut region, &merge);
    region.report(node(1), &[count("k", SEQUENCE, 5)], NOW);
    // The store holds 2, so its baseline is 4. With the 3 that wait to be written to it, the sum is 9.
    assert_eq!(lower_bounds(&mut region), vec![(SEQUENCE, 6)]);
}

/// A region that restarts several times within the recovery grace periods, each time with what it has published.
#[test]
fn what_is_used_above_a_lower_bound_is_published_before_it_is_a_baseline() {
    let limit = 1_000;
    let query = |own| wire::Query { limit, ..query(own, 1) };
    let mut published = 600;
    let mut passed = published;
    for life in 1..6 {
        let mut region = one_of(2);
        let stored = exchange::Stored { key: key("k"), sequence: SEQUENCE, count: published, limit };
        region.recover(&stored, true, NOW).unwrap();
        assert_eq!(rows(&mut region), vec![], "nothing is new");
        let ended = node(life);
        let granted = (0..limit).take_while(|own| region.query(ended, &query(*own), NOW).unwrap().granted);
        passed += granted.take(150).count() as u64;
        let rows = rows(&mut region);
        region.published(&rows, NOW);
        published = counts(&rows).last().map_or(published, |row| row.1);
        assert_eq!(published, passed, "all that is used is published");
        // What a lost node sends again is in the lower bound already.
        region.report(node(9), &[wire::Count { limit, ..count("k", SEQUENCE, 600) }], NOW);
        assert!(!region.has_rows(Due::AtInterval));
    }
    assert_eq!(passed, limit);
}
