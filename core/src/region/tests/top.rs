//! The keys nearest their limits, and the use of a key.

use super::*;
use crate::region::top::{MAX_SCOPE_KEYS, MAX_TOP, Match, Scope, Top};
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};

fn limited(identifier: &str, sequence: u64, own: u64, limit: u64) -> wire::Count {
    wire::Count { limit, ..count(identifier, sequence, own) }
}

fn rank_all(region: &Region, scopes: Vec<Scope>) -> Top {
    rank_with(region, Top::new(scopes.into_iter().map(|scope| (scope, true))))
}

fn rank_with(region: &Region, mut top: Top) -> Top {
    while region.rank(&mut top, NOW) {}
    top
}

fn scope(namespace: &str, window_ms: u64) -> Scope {
    Scope { workspace: b"w".to_vec(), namespace: namespace.as_bytes().to_vec(), window_ms }
}

fn names(ranked: &[super::super::top::Ranked]) -> Vec<String> {
    ranked.iter().map(|one| String::from_utf8_lossy(one.key.parts().identifier).to_string()).collect()
}

#[test]
fn the_nearest_come_first_and_those_without_a_limit_not_at_all() {
    let mut region = region();
    let counts = [
        limited("third", SEQUENCE, 5, 10),
        limited("first", SEQUENCE, 30, 10),
        limited("second", SEQUENCE, 9, 10),
        limited("unlimited", SEQUENCE, 99, u64::MAX),
        limited("unused", SEQUENCE, 0, 10),
    ];
    region.report(node(1), &counts, NOW);
    let top = rank_all(&region, vec![scope("n", CELL_MS), scope("other", CELL_MS), scope("n", 1)]);
    assert_eq!(names(&top.nearest), ["first", "second", "third"]);
    assert_eq!((top.past_half, top.over), (2, 1));
    let over: Vec<_> = top.scopes.iter().map(|over| (over.keys, names(&over.furthest))).collect();
    assert_eq!(over, [(0, vec![]), (1, vec!["first".to_string()]), (0, vec![])]);
}

#[test]
fn keys_that_only_shadow_rules_count_are_no_denials() {
    let mut region = region();
    let counts = ["over", "half", "low"].map(String::from).into_iter().zip([30, 9, 1]);
    let counts: Vec<_> = counts.map(|(name, own)| limited(&name, SEQUENCE, own, 10)).collect();
    region.report(node(1), &counts, NOW);
    for (rules, nearest, past_half, over) in [
        (vec![], 3, 2, 1),
        (vec![(scope("n", CELL_MS), false)], 0, 0, 0),
        // An enforcing rule counts the same keys.
        (vec![(scope("n", CELL_MS), false), (scope("n", CELL_MS), true)], 3, 2, 1),
        (vec![(scope("n", CELL_MS), true), (scope("n", CELL_MS), false)], 3, 2, 1),
        (vec![(scope("n", 1), false)], 3, 2, 1),
    ] {
        let top = rank_with(&region, Top::new(rules.clone()));
        assert_eq!((top.nearest.len(), top.past_half, top.over, top.limited), (nearest, past_half, over, 3));
        let would: Vec<_> = top.scopes.iter().map(|over| (over.keys, over.furthest.len())).collect();
        let is_here = rules.iter().any(|(of, _)| *of == scope("n", CELL_MS));
        assert_eq!(would, if is_here { vec![(1, 1)] } else { vec![(0, 0); rules.len()] });
        // A search finds them.
        let found = rank_with(&region, Top::new(rules).matching(b"o"));
        assert_eq!((names(&found.nearest), found.over), (vec!["over".to_string(), "low".to_string()], over));
    }
}

#[test]
fn the_best_matches_come_first_however_little_they_have_used() {
    let mut region = region();
    let mut counts: Vec<_> =
        (0..MAX_TOP as u64 + 50).map(|at| limited(&format!("cust-1{at}"), SEQUENCE, 100 + at, 100)).collect();
    counts.push(limited("CUST-1", SEQUENCE, 3, 100));
    counts.push(limited("cust-1", SEQUENCE, 2, 100));
    counts.push(limited("a cust-1", SEQUENCE, 500, 100));
    counts.push(limited("other", SEQUENCE, 900, 100));
    region.report(node(1), &counts, NOW);
    let found = rank_with(&region, Top::default().matching(b"cust-1"));
    assert_eq!(names(&found.nearest[..3]), ["cust-1", "CUST-1", "cust-1149"]);
    assert_eq!((found.nearest.len(), found.limited), (MAX_TOP, counts.len() as u64 - 1));
    // By namespace too, after those whose identifiers match.
    let found = rank_with(&region, Top::default().matching(b"N"));
    assert_eq!(found.limited, counts.len() as u64);
    assert_eq!(found.nearest[0].matches, Match::Namespace);
    assert_eq!(names(&found.nearest[..1]), ["other"]);
}

#[test]
fn matches_of_a_text() {
    for (text, expected) in [
        ("", Some(Match::Whole)),
        ("User_1", Some(Match::Whole)),
        ("user_1", Some(Match::WholeInOtherCase)),
        ("us", Some(Match::Beginning)),
        ("SER_1", Some(Match::Part)),
        ("PER-", Some(Match::Namespace)),
        ("User_15", None),
        ("a text that is longer than both", None),
    ] {
        assert_eq!(Match::of(text.as_bytes(), b"User_1", b"per-user"), expected, "{text}");
    }
}

#[test]
fn the_use_of_a_key_is_computed_as_for_a_decision() {
    let mut region = region();
    region.report(node(1), &[limited("k", SEQUENCE - 1, 10, 50)], NOW);
    region.report(node(2), &[limited("k", SEQUENCE, 4, 12)], NOW);
    let half = UnixMs(NOW.0 + CELL_MS / 2);
    let usage = region.explain(b"w", b"n", b"k")[0].usage(half);
    assert_eq!((usage.used, usage.limit, usage.current), (9, Some(12), 4));
    assert_eq!((usage.global_others, usage.wait_ms), (0, Some(0)));
    // With a limit given by the caller.
    let usage = region.explain(b"w", b"n", b"k")[0].usage_under(Some(9), half);
    assert_eq!((usage.used, usage.limit, usage.is_over()), (9, Some(9), true));
    assert_eq!(usage.wait_ms, Some(1), "after 1 ms one less of the previous ten counts");
    // No limit was applied to the new cell yet, so the last one that was applied is used.
    let later = UnixMs(NOW.0 + CELL_MS);
    let usage = region.explain(b"w", b"n", b"k")[0].usage(later);
    assert_eq!((usage.used, usage.limit, usage.current), (4, Some(12), 0));
}

#[test]
fn lists_are_bounded_and_many_keys_are_ranked_in_steps() {
    let mut region = region();
    for batch in 0..100 {
        let counts: Vec<_> =
            (0..100).map(|n| limited(&format!("k{batch}-{n}"), SEQUENCE, 10 + n, 10)).collect();
        region.report(node(1), &counts, NOW);
    }
    let mut top = Top::new([(scope("n", CELL_MS), true)]);
    assert!(region.rank(&mut top, NOW), "one step does not visit all keys");
    while region.rank(&mut top, NOW) {}
    assert_eq!((top.limited, top.over), (10_000, 10_000));
    assert_eq!((top.nearest.len(), top.scopes[0].furthest.len()), (MAX_TOP, MAX_SCOPE_KEYS));
    assert!(top.nearest.iter().all(|one| one.usage.used == 109));
}

#[test]
fn the_highest_numbers_do_not_overflow() {
    let mut region = region();
    region.attach_store();
    for (name, limit) in [("a", 0), ("b", MAX_COUNT)] {
        region.learn(&key(name), SEQUENCE, limit, &[(node(1), MAX_COUNT)], NOW).unwrap();
    }
    region.report(node(1), &[limited("c", SEQUENCE, 1, u64::MAX - 1)], NOW);
    assert_eq!(names(&rank_all(&region, vec![]).nearest), ["a", "b", "c"]);
}

proptest! {
    #[test]
    fn the_list_equals_that_of_sorting_all_keys(
        used in prop::collection::vec((1u64..40, 1u64..20), 1..300)
    ) {
        let mut region = region();
        for (at, (own, limit)) in used.iter().enumerate() {
            region.report(node(1), &[limited(&format!("{at}"), SEQUENCE, *own, *limit)], NOW);
        }
        let top = rank_all(&region, vec![]);
        let mut shares: Vec<_> = used.iter().map(|(own, limit)| own * 1_000_000 / limit).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        shares.truncate(MAX_TOP);
        let found: Vec<_> =
            top.nearest.iter().map(|one| one.usage.used * 1_000_000 / one.usage.limit.unwrap()).collect();
        prop_assert_eq!(found, shares);
        prop_assert_eq!(top.over, used.iter().filter(|(own, limit)| own >= limit).count() as u64);
    }
}

#[test]
fn the_limit_that_was_applied_last_is_shown_whatever_the_order_of_arrival() {
    let shown = |counts: &[(u64, u64)]| {
        let mut region = region();
        for (limit, applied_ms) in counts {
            let count = wire::Count { applied_ms: *applied_ms, ..limited("k", SEQUENCE, 30, *limit) };
            assert_eq!(region.report(node(1), &[count], NOW).refused, vec![]);
        }
        let explained = &region.explain(b"w", b"n", b"k")[0];
        let ranked = rank_all(&region, vec![]).nearest[0].usage.limit;
        assert_eq!(ranked, explained.usage(NOW).limit);
        (ranked.unwrap(), explained.cells[0].limit)
    };
    assert_eq!(shown(&[(1_000, 5), (50, 9), (200, 12)]), (200, 50));
    assert_eq!(shown(&[(200, 12), (50, 9), (1_000, 5)]), (200, 50));
    assert_eq!(shown(&[(200, 9), (100, 9)]), (100, 100), "of one moment the lower");
    assert_eq!(shown(&[(200, 9), (1_000, 0), (100, 0)]), (200, 100), "a repeated row is no newer");
    assert_eq!(shown(&[(1_000, 0), (100, 0), (200, 0)]), (100, 100), "without times the lowest is known");
    let future = NOW.0 + 60_000;
    assert_eq!(shown(&[(9, future), (200, NOW.0)]).0, 9, "of one moment, as no time is ahead of now");
    assert_eq!(shown(&[(u64::MAX, 9), (200, 5)]), (200, 200));
}

#[test]
fn a_limit_is_shown_though_the_clock_was_set_back_since_the_last_one() {
    let mut region = region();
    for (limit, at) in [(1_000, UnixMs(NOW.0 + 60_000)), (50, NOW)] {
        let count = wire::Count { applied_ms: at.0, ..limited("k", SEQUENCE, 30, limit) };
        assert_eq!(region.report(node(1), &[count], at).refused, vec![]);
    }
    assert_eq!(region.explain(b"w", b"n", b"k")[0].newest_limit, Some(50));
}
