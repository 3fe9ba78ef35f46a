//! Tests one log and many against a model that keeps every entry and sums all of them each time.

use super::*;
use crate::model::key::{Key, KeyParts};
use proptest::prelude::*;
use std::vec::Vec;

const WINDOW: u64 = 1_000_000;

fn id(number: u64) -> EntryId {
    EntryId { request: ExactRequestId::of(7, number), place: 0 }
}

fn key(number: u64) -> Key {
    key_in(b"w", b"n", number)
}

fn key_in(workspace: &[u8], namespace: &[u8], number: u64) -> Key {
    let identifier = &number.to_be_bytes();
    Key::new(&KeyParts { workspace, namespace, identifier, duration_ms: 1_000, epoch: 0, resolution: 1 })
        .unwrap()
}

fn charge(key_number: u64, number: u64, cost: u64, most: u64) -> LogCharge {
    LogCharge { key: key(key_number), id: id(number), cost, most }
}

/// All entries that were ever charged and not refunded.
#[derive(Default)]
struct Model {
    entries: Vec<(u64, u64, EntryId)>,
}

impl Model {
    fn live(&self, now: u64) -> impl Iterator<Item = &(u64, u64, EntryId)> {
        self.entries.iter().filter(move |(at, ..)| now - at < WINDOW)
    }

    fn used(&self, now: u64) -> u64 {
        self.live(now).map(|(_, cost, _)| cost).sum()
    }

    fn decide(&mut self, now: u64, id: EntryId, cost: u64, most: u64) -> LogDecision {
        let known = self.live(now).any(|entry| entry.2 == id);
        let passes = known || self.used(now) + cost <= most;
        if passes && !known && cost > 0 {
            self.entries.push((now, cost, id));
        }
        let used = self.used(now);
        // Checks every microsecond at which an entry ends.
        let mut ends: Vec<_> = self.live(now).map(|(at, ..)| at + WINDOW).collect();
        ends.sort_unstable();
        let retry = ends.iter().find(|end| self.used(**end) + cost <= most).map(|end| end - now);
        let retry_after_us = retry.filter(|_| cost <= most);
        let outcome = if passes { Outcome::Allowed } else { Outcome::Denied { retry_after_us } };
        let reset_us = ends.first().map_or(0, |end| end - now);
        LogDecision { outcome, at: Micros(now), used, reset_us }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Charge { id: u64, cost: u64, most: u64 },
    Refund(u64),
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    prop_oneof![
        2 => prop_oneof![Just(0), 1..5_u64, 0..WINDOW / 3, Just(WINDOW)].prop_map(Step::Wait),
        6 => (0..60_u64, 0..5_u64, prop_oneof![Just(8_u64), 0..12_u64])
            .prop_map(|(id, cost, most)| Step::Charge { id, cost, most }),
        1 => (0..60_u64).prop_map(Step::Refund),
    ]
}

proptest! {
    #[test]
    fn a_log_behaves_as_the_model(steps in prop::collection::vec(step(), 1..200), ones in any::<bool>()) {
        let (mut log, mut model, mut now) = (Log::new(WINDOW), Model::default(), 5);
        for step in steps {
            match step {
                Step::Wait(us) => now += us,
                Step::Charge { id: number, cost, most } => {
                    let cost = if ones { cost.min(1) } else { cost };
                    let expected = model.decide(now, id(number), cost, most);
                    prop_assert_eq!(log.peek(Micros(now), id(number), cost, most).outcome, expected.outcome);
                    prop_assert_eq!(log.decide(Micros(now), id(number), cost, most), expected);
                    prop_assert_eq!(log.len(), model.live(now).count());
                }
                Step::Refund(number) => {
                    let known = model.live(now).any(|entry| entry.2 == id(number));
                    log.tick(Micros(now));
                    prop_assert_eq!(log.refund(id(number)), known);
                    model.entries.retain(|entry| entry.2 != id(number));
                }
            }
        }
    }

    #[test]
    fn no_true_window_holds_more_than_the_limit_however_the_clock_steps_back(
        steps in prop::collection::vec((0..WINDOW / 4, prop::option::weighted(0.1, 1..3 * WINDOW), 1..4_u64), 1..300),
    ) {
        const MOST: u64 = 6;
        let (mut log, mut charged) = (Log::new(WINDOW), Vec::new());
        let (mut truth, mut back) = (0_u64, 0_u64);
        for (number, (wait, step_back, cost)) in (0..).zip(steps) {
            truth += wait;
            back += step_back.unwrap_or(0);
            let shown = Micros((1_000 * WINDOW + truth).saturating_sub(back));
            if log.decide(shown, id(number), cost, MOST).outcome == Outcome::Allowed {
                charged.push((truth, cost));
            }
        }
        for (end, _) in &charged {
            let window = charged.iter().filter(|(at, _)| at <= end && end - at < WINDOW);
            prop_assert!(window.map(|(_, cost)| cost).sum::<u64>() <= MOST);
        }
    }

    #[test]
    fn many_logs_are_as_many_single_ones(
        steps in prop::collection::vec((0..WINDOW / 8, 0..6_u64, 0..100_u64, 0..4_u64, any::<bool>()), 1..300),
    ) {
        let mut logs = Logs::new(LogsLimits::default());
        let mut each: Vec<_> = (0..6).map(|_| Log::new(WINDOW)).collect();
        let mut now = 0;
        for (wait, which, number, cost, refund) in steps {
            now += wait;
            let log = &mut each[usize::try_from(which).unwrap()];
            if refund && number % 4 == 0 {
                log.tick(Micros(now));
                while logs.tick(Micros(now)) {}
                prop_assert_eq!(logs.refund(&key(which), id(number)), log.refund(id(number)));
            }
            let expected = log.decide(Micros(now), id(number), cost, 5);
            prop_assert_eq!(logs.decide(Micros(now), &charge(which, number, cost, 5)), Ok(expected));
            while logs.tick(Micros(now)) {}
            let live = each.iter_mut().map(|log| { log.tick(Micros(now)); log.len() });
            prop_assert_eq!(logs.entries(), live.sum::<usize>());
        }
        while logs.tick(Micros(now + WINDOW)) {}
        prop_assert_eq!((logs.len(), logs.entries()), (0, 0));
    }
}

#[test]
fn time_stands_still_when_the_clock_steps_back_and_then_advances_again() {
    let mut log = Log::new(WINDOW);
    let first = log.decide(Micros(10 * WINDOW), id(1), 1, 1);
    assert_eq!(first.outcome, Outcome::Allowed);
    let denied = |wait| Outcome::Denied { retry_after_us: Some(wait) };
    assert_eq!(log.decide(Micros(WINDOW), id(2), 1, 1).outcome, denied(WINDOW));
    assert_eq!(log.decide(Micros(WINDOW + 400_000), id(2), 1, 1).outcome, denied(600_000));
    assert_eq!(
        log.decide(Micros(2 * WINDOW), id(2), 1, 1).at,
        Micros(2 * WINDOW),
        "an empty log takes the given time"
    );
}

#[test]
fn a_use_without_room_is_not_charged_until_entries_have_ended() {
    let limits = LogsLimits { max_keys: 2, max_entries: 8 };
    let mut logs = Logs::new(limits);
    let mut decide = |now, k, number, cost| logs.decide(Micros(now), &charge(k, number, cost, 3));
    let outcome =
        |decided: Result<LogDecision, Full>| decided.map(|decided| decided.outcome == Outcome::Allowed);
    for (now, k, number) in [(0, 1, 1), (0, 1, 2), (1, 2, 3), (1, 2, 4)] {
        assert_eq!(
            outcome(decide(now, k, number, 1)),
            Ok(true),
            "two uses of a key, so that it is not evicted"
        );
    }
    assert_eq!(outcome(decide(2, 3, 5, 1)), Err(Full), "a third key");
    assert_eq!(outcome(decide(2, 3, 5, 0)), Ok(true), "a cost of 0 needs no room");
    assert_eq!(outcome(decide(2, 3, 5, 4)), Ok(false), "a denial needs no room");
    assert_eq!(outcome(decide(3, 1, 6, 1)), Ok(true));
    assert_eq!(outcome(decide(4, 2, 7, 1)), Err(Full), "a sixth entry");
    assert_eq!(outcome(decide(4, 1, 6, 1)), Ok(true), "charged before");
    assert_eq!(outcome(decide(WINDOW, 2, 7, 1)), Ok(true), "the first entries have ended");
    assert_eq!(
        outcome(decide(WINDOW + 1, 3, 8, 2)),
        Ok(true),
        "the first key has a single use left and is evicted"
    );
    assert_eq!(outcome(decide(2 * WINDOW, 1, 9, 1)), Ok(true), "all other entries but one have ended");
}

#[test]
fn a_flood_of_single_uses_evicts_itself_and_nothing_else() {
    let limits = LogsLimits { max_keys: 8, max_entries: 20 };
    let mut logs = Logs::new(limits);
    let mut number = 0;
    let mut decide = |logs: &mut Logs, now, k: u64, most| {
        number += 1;
        let decided = logs.decide(Micros(now), &charge(k, number, 1, most));
        decided.map(|decided| decided.outcome == Outcome::Allowed)
    };
    for _ in 0..3 {
        assert_eq!(decide(&mut logs, 0, 1, 3), Ok(true), "used up by three");
    }
    assert_eq!(decide(&mut logs, 0, 2, 1), Ok(true), "used up by one");
    for invented in 100..10_000 {
        assert_eq!(decide(&mut logs, 1, invented, 5), Ok(true), "{invented}");
        assert!(logs.len() <= 8 && logs.entries() <= 20);
        assert!(logs.leaving.len() == logs.len() && logs.singles() < logs.len());
    }
    assert_eq!(decide(&mut logs, 2, 1, 3), Ok(false), "still used up");
    assert_eq!(decide(&mut logs, 2, 2, 1), Ok(false), "still used up");
    for _ in 0..3 {
        assert_eq!(decide(&mut logs, 2, 3, 3), Ok(true), "a new key");
    }
    assert_eq!(decide(&mut logs, 2, 3, 3), Ok(false), "a new key is held to its limit");
    assert_eq!(decide(&mut logs, WINDOW + 1, 1, 3), Ok(true), "the window has ended");
    while logs.tick(Micros(3 * WINDOW)) {}
    assert_eq!((logs.len(), logs.entries(), logs.leaving.len(), logs.singles()), (0, 0, 0, 0));
}

#[test]
fn a_namespace_evicts_its_own_single_uses_and_those_of_many_invented_ones() {
    let limits = LogsLimits { max_keys: 1_000, max_entries: 1_000_000 };
    let mut once = {
        let mut number = 1 << 32;
        move |logs: &mut Logs, namespace: &[u8], k: u64| {
            number += 1;
            let key = key_in(b"w", namespace, k);
            logs.decide(Micros(0), &LogCharge { key, id: id(number), cost: 1, most: 9 }).is_ok()
        }
    };
    let has = |logs: &Logs, namespace: &[u8], k: u64| logs.contains(&key_in(b"w", namespace, k));
    // One that floods evicts its own that are used once, and no other's.
    let mut logs = Logs::new(limits);
    assert!(once(&mut logs, b"quiet", 1));
    for k in 0..5_000 {
        assert!(once(&mut logs, b"flood", k));
    }
    assert!(has(&logs, b"quiet", 1));
    let mut logs = Logs::new(limits);
    assert!(once(&mut logs, b"quiet", 1));
    let refused = (0..5_000).find(|k| !once(&mut logs, b"flood", *k) || !once(&mut logs, b"flood", *k));
    assert!(
        refused.is_some_and(|k| k > 500) && has(&logs, b"quiet", 1),
        "it has more than half: {refused:?}"
    );
    // Many invented ones, each with one key, keep no other out.
    let mut logs = Logs::new(limits);
    for invented in 0..5_000_u32 {
        once(&mut logs, &invented.to_le_bytes(), 1);
    }
    for k in 0..100 {
        assert!(once(&mut logs, b"newcomer", k), "{k}");
        assert!(once(&mut logs, b"newcomer", k), "{k}");
    }
    assert!((0..100).all(|k| has(&logs, b"newcomer", k)));
}

#[test]
fn a_sum_that_overflows_exceeds_every_limit() {
    let mut log = Log::new(WINDOW);
    assert_eq!(log.decide(Micros(0), id(1), u64::MAX, u64::MAX).outcome, Outcome::Allowed);
    let denied = log.decide(Micros(2), id(2), u64::MAX, u64::MAX);
    assert_eq!(
        (denied.outcome, denied.used),
        (Outcome::Denied { retry_after_us: Some(WINDOW - 2) }, u64::MAX)
    );
    assert_eq!(log.decide(Micros(u64::MAX), id(3), 5, 5).used, 5);
}
