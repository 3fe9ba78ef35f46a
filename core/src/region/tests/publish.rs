//! What is published to other regions and when, and what is imported from them.

use super::*;
use exchange::{Publication, Stored};

const LIMIT: u64 = 1_000;

/// A count of a key with a limit of 1 000.
fn of_thousand(sequence: u64, own: u64) -> wire::Count {
    wire::Count { limit: LIMIT, ..count("k", sequence, own) }
}

fn used(region: &mut Region, sequence: u64, own: u64, now: UnixMs) {
    assert_eq!(region.report(node(1), &[of_thousand(sequence, own)], now).refused, vec![]);
}

fn imported(region: &mut Region, name: &[u8], sequence: u64, count: u64, limit: u64) {
    let other = region.other_region(name).unwrap();
    let stored = Stored { key: key("k"), sequence, count, limit };
    region.import(other, &stored, UnixMs(sequence * CELL_MS)).unwrap();
}

fn publish(region: &mut Region, least: Due, now: UnixMs) -> Vec<(u64, u64)> {
    let rows = rows_at(region, least, now);
    region.published(&rows, now);
    counts(&rows)
}

fn after(ms: u64) -> UnixMs {
    UnixMs(NOW.0 + ms)
}

#[test]
fn use_that_could_be_part_of_an_excess_is_published_at_once_and_less_is_not() {
    for (regions, threshold) in [(1, 500), (2, 250), (10, 50), (64, 8), (1_000, 8)] {
        let mut region = one_of(regions);
        used(&mut region, SEQUENCE, threshold - 1, NOW);
        assert_eq!((region.take_urgent(), rows(&mut region)), (false, vec![]));
        used(&mut region, SEQUENCE, threshold, NOW);
        assert!(region.take_urgent());
        assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, threshold)], "{regions} regions");
        assert_eq!(rows(&mut region), vec![], "each change is due once");
    }
}

#[test]
fn without_a_database_nothing_is_due() {
    let mut region = region();
    used(&mut region, SEQUENCE, LIMIT, NOW);
    assert!(!region.take_urgent() && !region.has_rows(Due::AtInterval));
}

/// Each of ten regions uses just less than a tenth of the limit at a cell's end, and as much again when the next one begins. In either
/// cell alone that is below the threshold.
#[test]
fn the_effective_use_over_both_cells_makes_all_of_them_due() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE - 1, 45, NOW);
    assert_eq!(rows(&mut region), vec![]);
    used(&mut region, SEQUENCE, 5, NOW);
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE - 1, 45), (SEQUENCE, 5)]);
    // Late in the cell the previous one no longer counts.
    let mut region = one_of(10);
    used(&mut region, SEQUENCE - 1, 45, NOW);
    used(&mut region, SEQUENCE, 5, after(59_000));
    assert_eq!(rows_at(&mut region, Due::AtInterval, after(59_000)), vec![]);
}

#[test]
fn imported_use_is_never_published_and_makes_own_use_due_until_it_is() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE, 1, NOW);
    imported(&mut region, b"north", SEQUENCE, 48, LIMIT);
    assert_eq!(rows(&mut region), vec![]);
    imported(&mut region, b"north", SEQUENCE, 49, LIMIT);
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, 1)]);
    imported(&mut region, b"north", SEQUENCE, 60, LIMIT);
    assert_eq!(rows(&mut region), vec![], "all own use is published");
    // In the next window the use of both is below the threshold, so neither makes the other publish.
    let next = UnixMs(NOW.0 + 2 * CELL_MS);
    used(&mut region, SEQUENCE + 2, 2, next);
    imported(&mut region, b"north", SEQUENCE + 2, 3, LIMIT);
    assert_eq!(rows_at(&mut region, Due::AtInterval, next), vec![]);
}

#[test]
fn a_lower_limit_elsewhere_makes_use_due_and_denies_nothing() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE, 45, NOW);
    assert_eq!(rows(&mut region), vec![]);
    imported(&mut region, b"south", SEQUENCE, 1, 20);
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, 45)]);
    let query = wire::Query { own: 45, cost: 900, limit: LIMIT, ..query(45, 900) };
    assert!(region.query(node(1), &query, NOW).unwrap().granted);
}

#[test]
fn a_limit_that_falls_is_published() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE, 60, NOW);
    assert_eq!(rows(&mut region)[0].limit, LIMIT);
    used(&mut region, SEQUENCE, 60, NOW);
    let row = Publication { limit: LIMIT, ..row_of(&region) };
    region.published(&[row], NOW);
    region.report(node(2), &[wire::Count { limit: 100, ..count("k", SEQUENCE, 0) }], NOW);
    let all = rows_at(&mut region, Due::Now, NOW);
    assert_eq!((counts(&all), all[0].limit), (vec![(SEQUENCE, 60)], 100));
    region.published(&all, NOW);
    region.publish_failed(&all, NOW);
    assert_eq!(rows(&mut region), vec![]);
}

/// The only cell of `k` as a row.
fn row_of(region: &Region) -> Publication {
    let cell = cell(region);
    let (sequence, count) = (cell.sequence, cell.regional_total());
    Publication { key: key("k"), sequence, count, limit: cell.limit, expires: UnixMs(u64::MAX) }
}

#[test]
fn a_lone_region_publishes_seldom_and_several_publish_by_their_share() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE, 50, NOW);
    publish(&mut region, Due::Now, NOW);
    // On probation, a fortieth of what is left may stay unpublished.
    used(&mut region, SEQUENCE, 73, NOW);
    assert_eq!(rows_at(&mut region, Due::AtTick, NOW), vec![]);
    used(&mut region, SEQUENCE, 74, NOW);
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, 74)]);
    // Afterwards a quarter, at the next tick.
    let later = after(2_000);
    used(&mut region, SEQUENCE, 258, later);
    assert_eq!(rows_at(&mut region, Due::AtTick, later), vec![]);
    used(&mut region, SEQUENCE, 300, later);
    assert_eq!(rows_at(&mut region, Due::Now, later), vec![]);
    assert_eq!(publish(&mut region, Due::AtTick, later), vec![(SEQUENCE, 300)]);
    // A second region brings another probation, and then the share of two.
    let other = region.other_region(b"north").unwrap();
    let stored = Stored { key: key("k"), sequence: SEQUENCE, count: 100, limit: LIMIT };
    region.import(other, &stored, later).unwrap();
    used(&mut region, SEQUENCE, 316, later);
    assert_eq!(publish(&mut region, Due::Now, later), vec![(SEQUENCE, 316)]);
    let last = after(4_000);
    used(&mut region, SEQUENCE, 380, last);
    assert_eq!(rows_at(&mut region, Due::AtTick, last), vec![]);
    assert_eq!(publish(&mut region, Due::AtInterval, last), vec![(SEQUENCE, 380)]);
    used(&mut region, SEQUENCE, 450, last);
    assert_eq!(publish(&mut region, Due::Now, last), vec![(SEQUENCE, 450)]);
}

#[test]
fn what_another_aggregator_has_received_waits_for_the_interval() {
    let mut region = one_of(10);
    region.attach_store();
    region.learn(&key("k"), SEQUENCE, LIMIT, &[(node(1), 500)], NOW).unwrap();
    assert!(!region.take_urgent());
    assert_eq!(rows_at(&mut region, Due::AtTick, NOW), vec![]);
    assert_eq!(publish(&mut region, Due::AtInterval, NOW), vec![(SEQUENCE, 500)]);
}

#[test]
fn what_a_peer_has_published_is_not_due() {
    let mut region = one_of(10);
    used(&mut region, SEQUENCE, 60, NOW);
    region.published_elsewhere(&Stored { key: key("k"), sequence: SEQUENCE, count: 60, limit: LIMIT });
    assert_eq!(rows(&mut region), vec![]);
    region.published_elsewhere(&Stored { key: key("unknown"), sequence: SEQUENCE, count: 60, limit: LIMIT });
    assert!(region.explain(b"w", b"n", b"unknown").is_empty());
}

#[test]
fn more_regions_make_more_keys_due() {
    let mut region = one_of(2);
    used(&mut region, SEQUENCE, 100, NOW);
    assert_eq!(rows(&mut region), vec![]);
    region.set_regions(5);
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, 100)]);
}

#[test]
fn new_keys_and_other_namespaces_are_not_starved() {
    let mut region = one_of(10);
    let in_namespace = |namespace: &[u8], n: u64, own: u64| {
        let identifier = std::format!("{n}");
        let key =
            Key::new(&KeyParts { namespace, identifier: identifier.as_bytes(), ..key("k").parts() }).unwrap();
        wire::Count {
            key: key.as_bytes().to_vec(),
            sequence: SEQUENCE,
            own,
            limit: LIMIT,
            ..Default::default()
        }
    };
    let of = |rows: &[Publication], namespace: &[u8]| {
        rows.iter().filter(|row| row.key.parts().namespace == namespace).count()
    };
    // A hundred keys were published and are far above their shares; others become due for the first time.
    let flood: Vec<_> = (0..100).map(|n| in_namespace(b"flood", n, 500)).collect();
    region.report(node(1), &flood, NOW);
    let first = region.next_rows(Due::Now, 100, NOW);
    region.published(&first, NOW);
    let flood: Vec<_> = (0..100).map(|n| in_namespace(b"flood", n, 900)).collect();
    region.report(node(1), &flood, NOW);
    let new: Vec<_> = (0..50).map(|n| in_namespace(b"new", n, 100)).collect();
    region.report(node(1), &new, NOW);
    region.report(node(1), &[in_namespace(b"other", 0, 100)], NOW);
    let rows = region.next_rows(Due::Now, 40, NOW);
    assert_eq!((rows.len(), of(&rows, b"new"), of(&rows, b"other")), (40, 9, 1), "a quarter is for new keys");
    region.publish_failed(&rows, NOW);
    let mut rest = vec![];
    while region.has_rows(Due::Now) {
        rest.extend(region.next_rows(Due::Now, 40, NOW));
    }
    assert_eq!((of(&rest, b"flood"), of(&rest, b"new"), of(&rest, b"other")), (100, 50, 1));
}

#[test]
fn short_windows_stay_in_their_region() {
    for (duration_ms, due, imported) in
        [(9_999, vec![], Err(Refused::Key)), (10_000, vec![(NOW.0 / 10_000, 10)], Ok(false))]
    {
        let long = key("k");
        let short = Key::new(&KeyParts { duration_ms, ..long.parts() }).unwrap();
        let sequence = NOW.0 / duration_ms;
        let mut region = one_of(2);
        let key = short.as_bytes().to_vec();
        let count = wire::Count { key, sequence, own: 10, limit: 10, ..Default::default() };
        region.report(node(1), &[count], NOW);
        assert_eq!(other(&mut region, &short, sequence, 5, NOW), imported);
        assert_eq!(counts(&rows(&mut region)), due);
    }
}

#[test]
fn only_committed_rows_count_as_published() {
    let mut region = one_of(1);
    region.report(node(1), &[count("a", SEQUENCE, 5), count("b", SEQUENCE, 6)], NOW);
    let all = rows(&mut region);
    region.published(&all[..1], NOW);
    region.publish_failed(&all, NOW);
    assert_eq!(counts(&rows(&mut region)), vec![(SEQUENCE, 6)]);
}

#[test]
fn a_key_that_grew_while_it_was_published_is_due_again() {
    let mut region = one_of(10);
    region.report(node(1), &[count("k", SEQUENCE, 5)], NOW);
    let all = rows(&mut region);
    region.report(node(1), &[count("k", SEQUENCE, 8)], NOW);
    region.published(&all, NOW);
    region.publish_failed(&all, NOW);
    assert_eq!(counts(&rows(&mut region)), vec![(SEQUENCE, 8)]);
}

#[test]
fn all_keys_are_due_again_after_the_table_was_wiped() {
    let mut region = one_of(1);
    region.report(node(1), &[count("k", SEQUENCE, 5), count("small", SEQUENCE, 1)], NOW);
    publish(&mut region, Due::Now, NOW);
    region.forget_published();
    assert!(region.has_rows(Due::Now));
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE, 5)]);
}

/// A row above the threshold of publication is not worth a push to every Envoy.
#[test]
fn what_other_regions_used_is_pushed_to_all_nodes_past_half_of_the_limit() {
    let mut region = one_of(10);
    region.nodes.received_from(node(9), MonoMs(NOW.0));
    region.subscribe(node(9));
    assert_eq!(pushed(&mut region, node(9), NOW), (vec![], true));
    imported(&mut region, b"north", SEQUENCE, 500, LIMIT);
    assert_eq!(pushed(&mut region, node(9), NOW).0, vec![]);
    imported(&mut region, b"south", SEQUENCE, 1, LIMIT);
    assert_eq!(pushed(&mut region, node(9), NOW).0.len(), 1);
    // Without a limit it is unknown how much is left.
    let stored = Stored { key: key("old"), sequence: SEQUENCE, count: 1, limit: u64::MAX };
    let north = region.other_region(b"north").unwrap();
    region.import(north, &stored, NOW).unwrap();
    assert_eq!(pushed(&mut region, node(9), NOW).0.len(), 1);
}

/// The largest excess that is recorded at a time.
fn largest(region: &mut Region, at: UnixMs) -> Option<u64> {
    region.tick(at);
    region.excesses(at).next().map(|(_, largest)| largest)
}

#[test]
fn the_largest_excess_of_a_scope_is_kept_for_some_minutes() {
    let mut region = one_of(3);
    used(&mut region, SEQUENCE, 900, NOW);
    imported(&mut region, b"north", SEQUENCE, 100, LIMIT);
    assert_eq!(largest(&mut region, after(5_000)), None, "nothing was used beyond the limit");
    imported(&mut region, b"north", SEQUENCE, 143, LIMIT);
    imported(&mut region, b"south", SEQUENCE, 2, LIMIT);
    assert_eq!(largest(&mut region, after(4_999)), None, "the limit may still change");
    assert_eq!(largest(&mut region, after(5_000)), Some(45));
    let (scope, thousandths) = region.excesses(NOW).next().unwrap();
    assert_eq!((&scope.namespace[..], scope.window_ms, thousandths), (&b"n"[..], CELL_MS, 45));
    assert_eq!(largest(&mut region, after(300_000)), Some(45));
    assert_eq!(largest(&mut region, after(600_000)), Some(0));
}

#[test]
fn a_limit_that_live_control_raises_is_not_exceeded_before_the_change_arrives() {
    let mut region = one_of(2);
    used(&mut region, SEQUENCE, 1_000, NOW);
    imported(&mut region, b"north", SEQUENCE, 4_800, LIMIT);
    controlled(&mut region, LiveLimit::Set(6 * LIMIT), after(1_000));
    assert_eq!(largest(&mut region, after(5_000)), None);
    imported(&mut region, b"north", SEQUENCE, 5_060, LIMIT);
    assert_eq!(largest(&mut region, after(10_000)), Some(10), "of 6 000");
}

#[test]
fn what_was_used_before_a_limit_fell_is_no_excess() {
    let mut region = one_of(2);
    used(&mut region, SEQUENCE, 1_000, NOW);
    controlled(&mut region, LiveLimit::Set(6 * LIMIT), NOW);
    imported(&mut region, b"north", SEQUENCE, 4_800, LIMIT);
    controlled(&mut region, LiveLimit::Unset, NOW);
    imported(&mut region, b"north", SEQUENCE, 4_803, LIMIT);
    assert_eq!(largest(&mut region, after(5_000)), Some(3), "what came after it fell");
}

#[test]
fn an_excess_that_grows_by_small_steps_is_recorded_whole() {
    let mut region = one_of(2);
    used(&mut region, SEQUENCE, 999, NOW);
    let mut found = None;
    for (step, count) in (1..).zip([150, 300, 450]) {
        imported(&mut region, b"north", SEQUENCE, count, LIMIT);
        found = largest(&mut region, after(step * 5_500));
    }
    assert_eq!(found, Some(449));
}

#[test]
fn without_a_limit_that_applies_now_there_is_no_excess() {
    let mut region = one_of(2);
    imported(&mut region, b"north", SEQUENCE, 1_000, LIMIT);
    imported(&mut region, b"north", SEQUENCE, 5_800, LIMIT);
    assert_eq!(largest(&mut region, after(5_000)), None);
}

#[test]
fn sums_beyond_the_highest_count_are_that_count() {
    let mut region = one_of(1);
    region.attach_store();
    let parts = [(node(1), MAX_COUNT), (node(2), MAX_COUNT)];
    region.learn(&key("k"), SEQUENCE, 10, &parts, NOW).unwrap();
    let all = rows(&mut region);
    assert_eq!(all[0].count, MAX_COUNT);
    region.published(&all, NOW);
    region.publish_failed(&all, NOW);
    assert_eq!(rows(&mut region), vec![], "it is not due again and again");
    for name in [&b"one"[..], b"two"] {
        let other = region.other_region(name).unwrap();
        let stored = Stored { key: key("k"), sequence: SEQUENCE, count: MAX_COUNT, limit: u64::MAX };
        assert_eq!(
            region.import(other, &stored, NOW),
            Ok(ImportedCell { created: false, grew: name == b"one" })
        );
    }
    assert_eq!(cell(&region).global_others, MAX_COUNT);
}

/// A table that was wiped holds less of one region while it holds more of another.
#[test]
fn each_other_regions_component_only_grows() {
    let mut region = region();
    let names = [&b"north"[..], b"south", b"north"];
    let [north, south, again] = names.map(|name| region.other_region(name).unwrap());
    assert_eq!(north, again);
    for (other, count, sum) in [(north, 5, 5), (south, 3, 8), (north, 2, 8), (south, 4, 9), (north, 6, 10)] {
        let stored = Stored { key: key("k"), sequence: SEQUENCE, count, limit: u64::MAX };
        region.import(other, &stored, NOW).unwrap();
        assert_eq!(cell(&region).global_others, sum);
    }
    let held = cell(&region).others;
    let held: Vec<_> = held.iter().map(|part| (region.name_of_other(part.region), part.count)).collect();
    assert_eq!(held, vec![(&b"north"[..], 6), (&b"south"[..], 4)]);
}

#[test]
fn the_number_of_other_regions_is_bounded() {
    let mut region = region();
    for number in 0..MAX_OTHER_REGIONS {
        assert!(region.other_region(&number.to_le_bytes()).is_ok());
    }
    assert_eq!(region.other_region(b"one more"), Err(Refused::Full));
    assert!(region.other_region(&0_usize.to_le_bytes()).is_ok(), "a known one stays");
}

#[test]
fn implausible_cells_are_not_imported() {
    let mut region = region();
    for sequence in [SEQUENCE - 3, SEQUENCE + 3] {
        assert_eq!(other(&mut region, &key("k"), sequence, 1, NOW), Err(Refused::Sequence));
    }
    assert_eq!(other(&mut region, &key("k"), SEQUENCE, MAX_COUNT + 1, NOW), Err(Refused::Component));
}

#[test]
fn imports_leave_the_last_quarter_of_the_room() {
    let mut region = Region::new(RegionLimits { max_keys: 4, max_nodes: 9 }, HashKey(1, 2));
    for (identifier, taken) in [("a", true), ("b", true), ("c", true), ("d", false), ("a", true)] {
        assert_eq!(other(&mut region, &key(identifier), SEQUENCE, 5, NOW).is_ok(), taken, "{identifier}");
    }
    assert_eq!(region.report(node(1), &[count("e", SEQUENCE, 1)], NOW).refused, vec![]);
}

#[test]
fn a_limit_of_live_control_makes_use_due_and_hot_without_a_report() {
    let mut region = one_of(3);
    region.attach_store();
    for number in [1, 2] {
        assert!(region.nodes.received_from(node(number), MonoMs(NOW.0)));
        region.subscribe(node(number));
    }
    used(&mut region, SEQUENCE - 1, 10, NOW);
    used(&mut region, SEQUENCE, 150, NOW);
    pushed(&mut region, node(2), NOW);
    region.next_merges(9);
    assert_eq!((rows(&mut region), region.take_urgent()), (vec![], false));
    controlled(&mut region, LiveLimit::Set(100), NOW);
    assert!(region.take_urgent());
    let written: Vec<_> = region.next_merges(9).iter().map(|merge| (merge.sequence, merge.limit)).collect();
    assert_eq!(written, [(SEQUENCE - 1, 100), (SEQUENCE, 100)]);
    let snapshots = pushed(&mut region, node(2), NOW).0;
    assert!(snapshots.contains(&(SEQUENCE, 0, 150)), "{snapshots:?}");
    assert_eq!(publish(&mut region, Due::Now, NOW), vec![(SEQUENCE - 1, 10), (SEQUENCE, 150)]);
    controlled(&mut region, LiveLimit::Set(500), UnixMs(NOW.0 + 1));
    assert_eq!((rows(&mut region), cell(&region).limit), (vec![], 100), "a raise changes no cell");
    assert_eq!(region.explain(b"w", b"n", b"k")[0].newest_limit, Some(500));
}

/// Applies live control to the only key.
fn controlled(region: &mut Region, live: LiveLimit, now: UnixMs) {
    assert_eq!(region.control_some(0, |_, _| Some(live), now), None);
}

#[test]
fn the_configured_limit_applies_again_without_live_control_if_it_is_known() {
    let shown = |region: &Region| region.explain(b"w", b"n", b"k")[0].newest_limit;
    let at = |ms| UnixMs(NOW.0 + ms);
    let applied = |own, limit, ms| wire::Count { limit, applied_ms: at(ms).0, ..count("k", SEQUENCE, own) };
    let mut region = one_of(3);
    region.report(node(1), &[applied(150, 100, 0)], NOW);
    controlled(&mut region, LiveLimit::Set(1_000), at(1));
    let under_control = wire::Count { configured: Some(100), ..applied(160, 1_000, 2) };
    region.report(node(1), &[under_control], at(2));
    publish(&mut region, Due::AtInterval, at(3));
    // The next request would be denied, and there may be none.
    controlled(&mut region, LiveLimit::Unset, at(4));
    assert_eq!(shown(&region), Some(100));
    controlled(&mut region, LiveLimit::Unset, at(5));
    // A node had the live limit before this aggregator applied it.
    let ahead = wire::Count { configured: Some(100), ..applied(170, 2_000, 6) };
    region.report(node(1), &[ahead], at(6));
    controlled(&mut region, LiveLimit::Set(2_000), at(7));
    controlled(&mut region, LiveLimit::Unset, at(8));
    assert_eq!(shown(&region), Some(100));
    region.report(node(1), &[applied(170, 100, 9)], at(9));
    controlled(&mut region, LiveLimit::Unknown, at(10));
    let credited = wire::Count { configured: Some(110), ..applied(170, 120, 11) };
    region.report(node(1), &[credited], at(11));
    controlled(&mut region, LiveLimit::Unset, at(12));
    assert_eq!(shown(&region), Some(110));
}
