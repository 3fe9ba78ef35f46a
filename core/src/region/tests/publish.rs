//! What is published to other regions, and what is imported from them.

use super::*;

fn due(region: &mut Region) -> Vec<(u64, u64)> {
    region.next_due(99).0.iter().map(|due| (due.publication.sequence, due.publication.count)).collect()
}

fn rows(region: &mut Region) -> Vec<exchange::Publication> {
    region.next_due(99).0.into_iter().map(|due| due.publication).collect()
}

#[test]
fn half_of_the_limit_is_published_and_less_is_not() {
    let mut region = region();
    region.report(origin(1), &[count("k", SEQUENCE, 2)], NOW);
    region.report(origin(2), &[count("k", SEQUENCE, 2)], NOW);
    assert_eq!(due(&mut region), vec![]);
    region.report(origin(2), &[count("k", SEQUENCE, 3)], NOW);
    assert_eq!(due(&mut region), vec![(SEQUENCE, 5)]);
    assert_eq!(due(&mut region), vec![], "each change is due once");
}

#[test]
fn imported_use_is_never_published_but_makes_a_cell_due() {
    let mut region = region();
    region.report(origin(1), &[count("k", SEQUENCE, 1)], NOW);
    assert_eq!(other(&mut region, &key("k"), SEQUENCE, 9, NOW), Ok(false));
    assert_eq!(due(&mut region), vec![(SEQUENCE, 1)]);
    assert_eq!(other(&mut region, &key("other"), SEQUENCE, 9, NOW), Ok(true));
    assert_eq!(due(&mut region), vec![], "this region has used nothing of it");
}

#[test]
fn short_windows_stay_in_their_region() {
    let long = key("k");
    let short = Key::new(&KeyParts { duration_ms: 59_000, ..long.parts() }).unwrap();
    let sequence = NOW.0 / 59_000;
    let mut region = region();
    let count =
        wire::Count { key: short.as_bytes().to_vec(), sequence, own: 10, limit: 10, ..Default::default() };
    region.report(origin(1), &[count], NOW);
    other(&mut region, &short, sequence, 5, NOW).unwrap();
    region.forget_published();
    assert_eq!(due(&mut region), vec![]);
}

#[test]
fn only_committed_rows_count_as_published() {
    let mut region = region();
    region.report(origin(1), &[count("a", SEQUENCE, 5), count("b", SEQUENCE, 6)], NOW);
    let rows = rows(&mut region);
    region.published(&rows[..1]);
    region.publish_failed(&rows);
    assert_eq!(due(&mut region), vec![(SEQUENCE, 6)]);
}

#[test]
fn a_cell_that_grew_while_it_was_published_is_due_again() {
    let mut region = region();
    region.report(origin(1), &[count("k", SEQUENCE, 5)], NOW);
    let rows = rows(&mut region);
    region.report(origin(1), &[count("k", SEQUENCE, 6)], NOW);
    region.published(&rows);
    region.publish_failed(&rows);
    assert_eq!(due(&mut region), vec![(SEQUENCE, 6)]);
}

#[test]
fn all_cells_are_due_again_after_the_table_was_wiped() {
    let mut region = region();
    region.report(origin(1), &[count("k", SEQUENCE, 5), count("small", SEQUENCE, 1)], NOW);
    let rows = rows(&mut region);
    region.published(&rows);
    region.forget_published();
    assert_eq!(due(&mut region), vec![(SEQUENCE, 5)]);
}

#[test]
fn a_limit_that_falls_makes_a_cell_due() {
    let mut region = region();
    region.report(origin(1), &[count("k", SEQUENCE, 4)], NOW);
    assert_eq!(due(&mut region), vec![]);
    region.report(origin(2), &[wire::Count { limit: 8, ..count("k", SEQUENCE, 0) }], NOW);
    assert_eq!(due(&mut region), vec![(SEQUENCE, 4)]);
}

#[test]
fn sums_beyond_the_highest_count_are_that_count() {
    let mut region = region();
    region.back();
    let parts = [(origin(1), MAX_COUNT), (origin(2), MAX_COUNT)];
    region.learn(&key("k"), SEQUENCE, 10, &parts, NOW).unwrap();
    let rows = rows(&mut region);
    assert_eq!(rows[0].count, MAX_COUNT);
    region.published(&rows);
    region.publish_failed(&rows);
    assert_eq!(due(&mut region), vec![], "it is not due again and again");
    for name in [&b"one"[..], b"two"] {
        let other = region.other_region(name).unwrap();
        assert_eq!(region.import(other, &key("k"), SEQUENCE, MAX_COUNT, NOW), Ok(false));
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
        region.import(other, &key("k"), SEQUENCE, count, NOW).unwrap();
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
fn the_most_used_of_each_namespace_go_first() {
    let items: Vec<(Key, u64)> = (0..6).map(|n| (key(&std::format!("k{n}")), n)).collect();
    let one = key("k");
    let other = KeyParts { namespace: b"m", ..one.parts() };
    let mut items = items;
    items.push((Key::new(&other).unwrap(), 0));
    let choice = most_used(items, 2, |(key, used)| (key, *used));
    let mut chosen: Vec<u64> = choice.chosen.iter().map(|(_, used)| *used).collect();
    chosen.sort();
    assert_eq!((chosen, choice.left.len()), (vec![0, 4, 5], 4), "the other namespace has a cap of its own");
}

#[test]
fn imports_leave_the_last_quarter_of_the_room() {
    let mut region = Region::new(RegionLimits { max_keys: 4, max_origins: 9 }, (1, 2));
    for (identifier, taken) in [("a", true), ("b", true), ("c", true), ("d", false), ("a", true)] {
        assert_eq!(other(&mut region, &key(identifier), SEQUENCE, 5, NOW).is_ok(), taken, "{identifier}");
    }
    assert_eq!(region.report(origin(1), &[count("e", SEQUENCE, 1)], NOW).refused, vec![]);
}
