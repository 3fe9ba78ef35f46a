//! A region without room: which keys are evicted, and which never are.

use super::*;

const MAX_KEYS: usize = 64;

fn small() -> Region {
    Region::new(RegionLimits { max_keys: MAX_KEYS, ..RegionLimits::default() }, HashKey(1, 2))
}

/// A count of `identifier` in `namespace`, with a limit of 10.
fn count_in(namespace: &str, identifier: &str, own: u64) -> wire::Count {
    let usual = key(identifier);
    let key = Key::new(&KeyParts { namespace: namespace.as_bytes(), ..usual.parts() }).unwrap();
    wire::Count { key: key.as_bytes().to_vec(), sequence: SEQUENCE, own, limit: 10, ..Default::default() }
}

fn report(region: &mut Region, from: u8, count: wire::Count) -> Result<(), Refused> {
    let refused = region.report(node(from), &[count], NOW).refused;
    refused.first().map_or(Ok(()), |(_, why)| Err(*why))
}

fn used(region: &Region, namespace: &str, identifier: &str) -> u64 {
    let explained = region.explain(b"w", namespace.as_bytes(), identifier.as_bytes());
    explained.iter().flat_map(|explained| &explained.cells).map(CellState::total).sum()
}

#[test]
fn the_least_used_keys_make_room_and_those_past_half_their_limits_stay() {
    let mut region = small();
    for at in 0..8 {
        report(&mut region, 1, count_in("n", &std::format!("used-up-{at}"), 10)).unwrap();
        report(&mut region, 1, count_in("n", &std::format!("known-{at}"), 4)).unwrap();
    }
    for at in 0..10_000 {
        let now = UnixMs(NOW.0 + at);
        let invented = count_in("n", &std::format!("invented-{at}"), 1);
        assert_eq!(region.report(node(1), &[invented], now).refused, []);
        assert!(region.stats(MonoMs(NOW.0)).keys <= MAX_KEYS);
    }
    for at in 0..8 {
        assert_eq!(used(&region, "n", &std::format!("used-up-{at}")), 10);
        assert_eq!(used(&region, "n", &std::format!("known-{at}")), 4, "more used than the invented ones");
    }
    assert_eq!(region.stats(MonoMs(NOW.0)).keys_evicted, 10_000 - 48);
    assert_eq!(region.stats(MonoMs(NOW.0)).windows, 64);
    // An evicted count is stored again once its node reports it again.
    assert_eq!(used(&region, "n", "invented-100"), 0, "older than the remaining ones");
    assert_eq!(used(&region, "n", "invented-9999"), 1);
    report(&mut region, 1, count_in("n", "invented-100", 2)).unwrap();
    assert_eq!(used(&region, "n", "invented-100"), 2);
    let later = UnixMs(NOW.0 + 4 * CELL_MS);
    while region.tick(later) {}
    assert_eq!((region.stats(MonoMs(later.0)).keys, region.stats(MonoMs(later.0)).windows), (0, 0));
}

/// What other regions have used fills three quarters of the room at most, and those by the shares of workspaces and namespaces.
#[test]
fn what_is_imported_has_shares_too() {
    let mut region = small();
    let north = region.other_region(b"north").unwrap();
    let import = |region: &mut Region, namespace: &str, at: usize| {
        let count = count_in(namespace, &std::format!("{at}"), 9);
        let key = Key::parse(&count.key).unwrap();
        region
            .import(north, &exchange::Stored { key, sequence: SEQUENCE, count: 9, limit: 10 }, NOW)
            .map(drop)
    };
    for at in 0..MAX_KEYS / 4 {
        report(&mut region, 1, count_in("flooded", &std::format!("own-{at}"), 9)).unwrap();
    }
    let taken = (0..MAX_KEYS).filter(|at| import(&mut region, "flooded", *at).is_ok()).count();
    assert_eq!(taken, MAX_KEYS / 2, "to three quarters of the room");
    let taken = (0..MAX_KEYS).filter(|at| import(&mut region, "other", *at).is_ok()).count();
    assert!((MAX_KEYS / 4..=MAX_KEYS / 2).contains(&taken), "{taken}");
    assert_eq!(region.stats(MonoMs(NOW.0)).keys, MAX_KEYS * 3 / 4);
    let own = (0..MAX_KEYS / 4).filter(|at| used(&region, "flooded", &std::format!("own-{at}")) == 9).count();
    assert_eq!(own, MAX_KEYS / 4, "what a node here has reported stays");
}

/// Nodes here use as many keys as there is room for, none of them past half its limit.
#[test]
fn keys_that_other_regions_have_used_up_have_a_quarter_of_the_room() {
    for filled in [MAX_KEYS * 7 / 8, MAX_KEYS] {
        let mut region = small();
        let north = region.other_region(b"north").unwrap();
        let import = |region: &mut Region, identifier: &str, count: u64| {
            let key = Key::parse(&count_in("n", identifier, 0).key).unwrap();
            let stored = exchange::Stored { key, sequence: SEQUENCE, count, limit: 10 };
            region.import(north, &stored, NOW).is_ok()
        };
        for at in 0..filled {
            let own = if at < 8 { 9 } else { 2 };
            report(&mut region, 1, count_in("n", &std::format!("own-{at}"), own)).unwrap();
        }
        assert!(!import(&mut region, "little", 5), "the last quarter is for keys of nodes here");
        let used_up = |at: usize| std::format!("used-up-{at}");
        let taken = (0..MAX_KEYS).filter(|at| import(&mut region, &used_up(*at), 10)).count();
        let stored = (0..MAX_KEYS).filter(|at| used(&region, "n", &used_up(*at)) == 10).count();
        assert_eq!(stored, taken, "none takes the place of another one");
        assert!((MAX_KEYS / 8..=MAX_KEYS * 3 / 8).contains(&taken), "{taken} of {MAX_KEYS}");
        let own = |at: &usize| used(&region, "n", &std::format!("own-{at}")) == 9;
        assert_eq!((0..8).filter(own).count(), 8, "keys past half their limits stay");
        assert!(region.stats(MonoMs(NOW.0)).keys <= MAX_KEYS);
    }
}

#[test]
fn keys_of_several_nodes_are_evicted_after_those_of_one() {
    let mut region = small();
    for at in 0..MAX_KEYS / 2 {
        report(&mut region, 1, count_in("n", &std::format!("shared-{at}"), 1)).unwrap();
        report(&mut region, 2, count_in("n", &std::format!("shared-{at}"), 1)).unwrap();
        report(&mut region, 1, count_in("n", &std::format!("single-{at}"), 4)).unwrap();
    }
    for at in 0..16 {
        report(&mut region, 1, count_in("n", &std::format!("new-{at}"), 1)).unwrap();
    }
    assert!((0..MAX_KEYS / 2).all(|at| used(&region, "n", &std::format!("shared-{at}")) == 2));
}

#[test]
fn keys_of_a_namespace_that_fills_the_room_are_evicted_for_other_namespaces_only() {
    let mut region = small();
    for at in 0..MAX_KEYS {
        report(&mut region, 1, count_in("flooded", &std::format!("{at}"), 10)).unwrap();
    }
    assert_eq!(report(&mut region, 1, count_in("flooded", "more", 10)), Err(Refused::Full));
    for at in 0..MAX_KEYS / 2 {
        report(&mut region, 1, count_in("other", &std::format!("{at}"), 10)).unwrap();
    }
    assert_eq!(report(&mut region, 1, count_in("other", "more", 10)), Err(Refused::Full), "above its share");
    assert_eq!(report(&mut region, 1, count_in("flooded", "more", 10)), Err(Refused::Full));
    assert!((0..MAX_KEYS / 2).all(|at| used(&region, "other", &std::format!("{at}")) == 10));
}

#[test]
fn keys_that_wait_to_be_written_to_the_store_are_not_evicted() {
    let mut region = small();
    region.attach_store();
    for at in 0..MAX_KEYS {
        report(&mut region, 1, count_in("n", &std::format!("{at}"), 1)).unwrap();
    }
    assert_eq!(report(&mut region, 1, count_in("n", "more", 1)), Err(Refused::Full));
    for merge in region.next_merges(MAX_KEYS) {
        took(&mut region, &merge);
    }
    assert_eq!(report(&mut region, 1, count_in("n", "more", 1)), Ok(()));
    assert_eq!(region.stats(MonoMs(NOW.0)).keys, MAX_KEYS);
}

/// The application may count in the namespaces of its prefix.
fn granted(region: &mut Region) {
    let mut grants = Grants::default();
    grants.add(b"w", b"job-*");
    region.set_grants(grants);
}

/// A count in a workspace, of a key whose limit is used up.
fn used_up_in(workspace: &str, namespace: &str, identifier: &str) -> wire::Count {
    let count = count_in(namespace, identifier, 10);
    let key = Key::parse(&count.key).unwrap();
    let key = Key::new(&KeyParts { workspace: workspace.as_bytes(), ..key.parts() }).unwrap();
    wire::Count { key: key.as_bytes().to_vec(), ..count }
}

#[test]
fn invented_namespaces_evict_no_used_up_keys_beyond_the_share_of_who_may_invent_them() {
    for (workspace, prefix, expected) in [("w", "job-", MAX_KEYS / 2), ("other", "n-", MAX_KEYS / 2)] {
        let mut region = small();
        granted(&mut region);
        for at in 0..MAX_KEYS {
            let namespace = if at % 2 == 0 { "login" } else { "search" };
            report(&mut region, 1, used_up_in("w", namespace, &std::format!("{at}"))).unwrap();
        }
        let invented = |at: usize| used_up_in(workspace, &std::format!("{prefix}{at}"), "x");
        let taken = (0..4_000).filter(|at| report(&mut region, 2, invented(*at)).is_ok()).count();
        let stays =
            |at: usize| ["login", "search"].iter().any(|n| used(&region, n, &std::format!("{at}")) == 10);
        let left = (0..MAX_KEYS).filter(|at| stays(*at)).count();
        assert_eq!((left, taken), (expected, MAX_KEYS - expected), "{workspace} {prefix}");
    }
}

#[test]
fn invented_namespaces_evict_no_key_of_who_holds_less() {
    let mut region = small();
    granted(&mut region);
    for at in 0..8 {
        report(&mut region, 1, used_up_in("w", "login", &std::format!("{at}"))).unwrap();
        report(&mut region, 1, count_in("search", &std::format!("{at}"), 4)).unwrap();
    }
    for at in 0..4_000 {
        let _ = report(&mut region, 2, used_up_in("w", &std::format!("job-{at}"), "x"));
    }
    for at in 0..8 {
        assert_eq!(used(&region, "login", &std::format!("{at}")), 10);
    }
}
