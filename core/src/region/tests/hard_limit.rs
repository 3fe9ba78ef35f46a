//! Keys under a hard limit, whose windows have ten cells: plausible sequences, pushes, and decisions by window.

use super::*;
use crate::model::key::HARD_LIMIT_RESOLUTION;
use std::collections::BTreeSet;

/// A tenth of the window.
const TENTH_MS: u64 = CELL_MS / 10;
/// The cell of [`NOW`].
const NEWEST: u64 = NOW.0 / TENTH_MS;

fn fine() -> Key {
    Key::new(&KeyParts { resolution: HARD_LIMIT_RESOLUTION, ..key("k").parts() }).unwrap()
}

fn tenth(sequence: u64, own: u64, limit: u64) -> wire::Count {
    wire::Count { key: fine().as_bytes().to_vec(), sequence, own, limit, ..Default::default() }
}

fn queries(sequence: u64, own: u64, cost: u64, limit: u64) -> wire::Query {
    let key = fine().as_bytes().to_vec();
    wire::Query { id: 1, key, sequence, own, cost, limit, ..Default::default() }
}

/// One used in each of `cells` cells up to the newest.
fn used(region: &mut Region, cells: u64, limit: u64) {
    for back in (0..cells).rev() {
        assert_eq!(region.report(node(1), &[tenth(NEWEST - back, 1, limit)], NOW).refused, vec![]);
    }
}

fn sequences(region: &Region) -> Vec<u64> {
    region.explain(b"w", b"n", b"k")[0].cells.iter().map(|cell| cell.sequence).collect()
}

#[test]
fn sequences_are_plausible_up_to_two_windows_from_now_and_all_those_cells_have_room() {
    let mut region = region();
    let counts: Vec<_> = (NEWEST - 21..=NEWEST + 21).map(|sequence| tenth(sequence, 1, 10)).collect();
    let refused = region.report(node(1), &counts, NOW).refused;
    assert_eq!(refused, vec![(0, Refused::Sequence), (42, Refused::Sequence)]);
    assert_eq!(sequences(&region), (NEWEST - 20..=NEWEST + 20).collect::<Vec<_>>());
    // Counts of later cells displace the oldest ones.
    let later = UnixMs(NOW.0 + 5 * TENTH_MS);
    let counts: Vec<_> = (NEWEST + 21..=NEWEST + 25).map(|sequence| tenth(sequence, 1, 10)).collect();
    assert_eq!(region.report(node(1), &counts, later).refused, vec![]);
    assert_eq!(sequences(&region), (NEWEST - 15..=NEWEST + 25).collect::<Vec<_>>());
}

#[test]
fn a_query_is_granted_against_eleven_cells_in_full_and_answered_with_all_of_them() {
    let mut region = region();
    used(&mut region, 12, 15);
    let granted = |region: &mut Region, own, cost| {
        region.query(node(2), &queries(NEWEST, own, cost, 15), NOW).unwrap().granted
    };
    assert!(!granted(&mut region, 0, 5));
    assert!(granted(&mut region, 0, 4), "eleven of twelve cells count");
    assert!(!granted(&mut region, 4, 1));
    let answer = region.query(node(1), &queries(NEWEST, 1, 0, 15), NOW).unwrap();
    assert_eq!(
        answer.current.map(|snapshot| (snapshot.sequence, snapshot.own, snapshot.region_others)),
        Some((NEWEST, 1, 4))
    );
    let before: Vec<_> = answer
        .previous
        .iter()
        .chain(&answer.older)
        .map(|snapshot| (snapshot.sequence, snapshot.own))
        .collect();
    assert_eq!(before, (1..=10).map(|back| (NEWEST - back, 1)).collect::<Vec<_>>());
    // One cell later the window no longer touches the oldest of them.
    let later = UnixMs(NOW.0 + TENTH_MS);
    let query = |cost| queries(NEWEST + 1, 0, cost, 15);
    assert!(!region.query(node(2), &query(2), later).unwrap().granted);
    assert!(region.query(node(2), &query(1), later).unwrap().granted);
}

#[test]
fn cells_are_kept_for_as_long_as_a_window_touches_them() {
    let mut region = region();
    used(&mut region, 11, 100);
    region.tick(UnixMs(NOW.0 + TENTH_MS - 1));
    assert_eq!(sequences(&region).len(), 11);
    let later = UnixMs(NOW.0 + 5 * TENTH_MS);
    assert_eq!(region.report(node(1), &[tenth(NEWEST + 5, 1, 100)], later).refused, vec![]);
    region.tick(UnixMs(NOW.0 + 11 * TENTH_MS - 1_000));
    assert!(sequences(&region).contains(&NEWEST), "the last second in which a window touches it");
    region.tick(UnixMs(NOW.0 + 11 * TENTH_MS));
    assert_eq!(sequences(&region), vec![NEWEST + 5]);
    // The key is checked again a window later.
    region.tick(UnixMs(NOW.0 + 22 * TENTH_MS));
    assert_eq!((region.stats(MonoMs(NOW.0)).keys, region.stats(MonoMs(NOW.0)).windows), (0, 0));
}

#[test]
fn a_key_is_hot_by_the_sum_of_its_window() {
    let mut region = backed();
    region.set_complete(true);
    region.nodes.received_from(node(9), MonoMs(NOW.0));
    region.subscribe(node(9));
    assert_eq!(pushed(&mut region, node(9), NOW), (vec![], true));
    used(&mut region, 5, 10);
    assert_eq!(pushed(&mut region, node(9), NOW).0, vec![], "half is not past half");
    assert_eq!(region.next_hot(99), vec![]);
    region.report(node(1), &[tenth(NEWEST + 1, 1, 10)], NOW);
    let snapshots = pushed(&mut region, node(9), NOW).0;
    let six: Vec<_> = (NEWEST - 4..=NEWEST + 1).collect();
    assert_eq!(snapshots, six.iter().map(|sequence| (*sequence, 0, 1)).collect::<Vec<_>>());
    let mut hot: Vec<_> = region.next_hot(99).iter().map(|hot| (hot.sequence, hot.utilisation)).collect();
    hot.sort_unstable();
    assert_eq!(
        hot,
        six.iter().map(|sequence| (*sequence, 600)).collect::<Vec<_>>(),
        "all cells of the window are pushed"
    );
    assert_eq!(region.next_hot(99), vec![], "each is named once");
}

#[test]
fn a_cell_that_makes_a_window_hot_lets_its_other_cells_be_shared() {
    let mut region = backed();
    region.nodes.received_from(node(1), MonoMs(NOW.0));
    region.subscribe(node(1));
    used(&mut region, 5, 10);
    for merge in region.next_merges(99) {
        took(&mut region, &merge);
    }
    assert_eq!(region.next_changes(99), vec![], "a cell that is not hot is not shared");
    region.report(node(1), &[tenth(NEWEST, 2, 10)], NOW);
    for merge in region.next_merges(99) {
        took(&mut region, &merge);
    }
    let mut shared: Vec<_> = region.next_changes(99).iter().map(|change| change.sequence).collect();
    shared.sort_unstable();
    assert_eq!(shared, (NEWEST - 4..=NEWEST).collect::<Vec<_>>());
}

#[test]
fn cells_are_published_once_their_window_has_reached_half_and_each_again_when_it_grows() {
    let mut region = one_of(1);
    used(&mut region, 4, 10);
    assert_eq!(rows(&mut region), vec![]);
    region.report(node(1), &[tenth(NEWEST, 2, 10)], NOW);
    let all = rows(&mut region);
    assert_eq!(counts(&all), vec![(NEWEST - 3, 1), (NEWEST - 2, 1), (NEWEST - 1, 1), (NEWEST, 2)]);
    let ends: Vec<_> = all.iter().map(|row| row.expires.0).collect();
    assert_eq!(ends[3], NOW.0 + 11 * TENTH_MS, "no window touches it from then on");
    region.published(&all, NOW);
    region.report(node(1), &[tenth(NEWEST + 1, 1, 10)], NOW);
    assert_eq!(counts(&rows(&mut region)), vec![(NEWEST + 1, 1)], "the new cell, and no cell twice");
}

#[test]
fn an_import_of_one_cell_makes_the_whole_window_due() {
    let mut region = one_of(2);
    used(&mut region, 2, 1_000);
    other(&mut region, &fine(), NEWEST - 5, 400, NOW).unwrap();
    assert_eq!(counts(&rows(&mut region)), vec![(NEWEST - 1, 1), (NEWEST, 1)]);
    assert!(!region.query(node(2), &queries(NEWEST, 0, 599, 1_000), NOW).unwrap().granted);
    assert!(region.query(node(2), &queries(NEWEST, 0, 598, 1_000), NOW).unwrap().granted);
}

#[test]
fn the_stores_first_answer_contains_all_cells_before_and_a_proposal_contains_imports() {
    let mut region = backed();
    region.report(node(1), &[tenth(NEWEST, 1, 50)], NOW);
    let merge = region.next_merges(9).remove(0);
    assert!(merge.wants_previous);
    let previous: Vec<Vec<Part>> = (1..=10).map(|back| vec![(node(2), back)]).collect();
    region.merged(&merge, &Merged { previous, ..holding(&merge.parts) }, NOW);
    assert_eq!(sequences(&region), (NEWEST - 10..=NEWEST).collect::<Vec<_>>());
    other(&mut region, &fine(), NEWEST - 3, 7, NOW).unwrap();
    other(&mut region, &fine(), NEWEST - 10, 8, NOW).unwrap();
    other(&mut region, &fine(), NEWEST - 11, 100, NOW).unwrap();
    other(&mut region, &fine(), NEWEST, 9, NOW).unwrap();
    let Ok(Proposed::Query(merge)) = region.propose(node(3), &queries(NEWEST, 0, 1, 500), NOW) else {
        panic!("it fits by the counts stored here");
    };
    let proposal = merge.proposal.unwrap();
    assert_eq!((proposal.global_current, proposal.global_previous), (9, 15));
    assert_eq!((proposal.covered_ms, proposal.cell_ms), (TENTH_MS, TENTH_MS));
    let refused = region.propose(node(3), &queries(NEWEST, 0, 21, 100), NOW);
    assert!(
        matches!(refused, Ok(Proposed::Settled(answer)) if !answer.granted),
        "56 here and 24 in other regions"
    );
    assert!(matches!(region.propose(node(3), &queries(NEWEST, 0, 20, 100), NOW), Ok(Proposed::Query(_))));
}

#[test]
fn a_push_holds_no_more_cells_than_a_frame_may() {
    let mut region = region();
    region.nodes.received_from(node(9), MonoMs(NOW.0));
    region.subscribe(node(9));
    for n in 0..60u32 {
        let key = key(&std::format!("k{n}"));
        let key = Key::new(&KeyParts { resolution: HARD_LIMIT_RESOLUTION, ..key.parts() }).unwrap();
        let counts: Vec<_> = (0..11)
            .map(|back| wire::Count { key: key.as_bytes().to_vec(), ..tenth(NEWEST - back, 1, 10) })
            .collect();
        region.report(node(1), &counts, NOW);
    }
    let mut pushed_cells = BTreeSet::new();
    while let Some(push) = region.next_push(node(9), NOW) {
        assert!(push.snapshots.len() <= wire::MAX_FRAME_CELLS);
        pushed_cells.extend(push.snapshots.into_iter().map(|snapshot| (snapshot.key, snapshot.sequence)));
    }
    assert_eq!(pushed_cells.len(), 60 * 11);
}
