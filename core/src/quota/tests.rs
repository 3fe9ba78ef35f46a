//! Proxies that spend what they were allotted, and a limit that is charged with what they report.

use super::*;
use crate::model::time::UnixMs;
use proptest::prelude::*;
use std::vec;

const MINUTE_MS: u64 = 60_000;

/// A proxy as Envoy's filter behaves: a bucket of tokens, and what it has not reported.
#[derive(Clone, Copy, Debug, Default)]
struct Proxy {
    tokens: f64,
    size: f64,
    /// Tokens that it receives in a millisecond.
    rate: f64,
    allowed: u64,
    denied: u64,
    passed: u64,
}

impl Proxy {
    fn takes(&mut self, allotment: Allotment) {
        let former = *self;
        *self = match allotment {
            Allotment::Nothing => Proxy { tokens: 0.0, size: 0.0, rate: 0.0, ..former },
            // The aggregator lets the bucket begin anew.
            Allotment::Tokens(tokens) => {
                let size = tokens as f64;
                Proxy { tokens: size, size, rate: size / FILL_MS as f64, ..former }
            }
            Allotment::Rate { tokens, seconds } => {
                let rate = tokens as f64 / seconds as f64;
                let size = rate.ceil().max(1.0);
                let filled = if former.size > 0.0 { former.tokens / former.size } else { 1.0 };
                Proxy { tokens: (size * filled).floor(), size, rate: rate / 1e3, ..former }
            }
        };
    }

    fn waits(&mut self, ms: u64) {
        self.tokens = (self.tokens + self.rate * ms as f64).min(self.size);
    }

    fn requests(&mut self, requests: u64) {
        let passes = (self.tokens.floor() as u64).min(requests);
        self.tokens -= passes as f64;
        self.allowed += passes;
        self.passed += passes;
        self.denied += requests - passes;
    }
}

/// Proxies and the window that they share.
struct World {
    now: u64,
    window_ms: u64,
    limit: u64,
    /// The cell that was charged last, its use, and that of the one before.
    cells: (u64, u64, u64),
    division: Division,
    proxies: Vec<Proxy>,
    /// Requests that passed between a report and its answer.
    late: u64,
}

impl World {
    fn new(proxies: usize, limit: u64, window_ms: u64) -> World {
        let mut world = World {
            now: 1_000_000,
            window_ms,
            limit,
            cells: (0, 0, 0),
            division: Division::new(window_ms),
            proxies: vec![Proxy::default(); proxies],
            late: 0,
        };
        for id in 0..proxies {
            assert!(world.division.join(id as u64, 0, MonoMs(world.now)));
        }
        world
    }

    fn room(&mut self) -> Room {
        let at = Position::at(UnixMs(self.now), self.window_ms);
        self.turn(&at);
        let (_, current, previous) = self.cells;
        let used = crate::model::window::Used::Average { current, previous };
        Room { limit: self.limit, left: used.remaining(&at, self.limit), at }
    }

    fn turn(&mut self, at: &Position) {
        let (sequence, current, _) = self.cells;
        if at.sequence != sequence {
            self.cells = (at.sequence, 0, if at.sequence == sequence + 1 { current } else { 0 });
        }
    }

    fn charge(&mut self, amount: u64) {
        let at = Position::at(UnixMs(self.now), self.window_ms);
        self.turn(&at);
        self.cells.1 += amount;
    }

    /// The proxy reports, and between that and its new allotment sends `late` further requests.
    fn reports(&mut self, id: usize, late: u64) {
        let Proxy { allowed, denied, .. } = self.proxies[id];
        (self.proxies[id].allowed, self.proxies[id].denied) = (0, 0);
        let report = Report { allowed, denied, within_ms: 5_000 };
        self.division.report(id as u64, report, MonoMs(self.now));
        self.pays(false);
        let room = self.room();
        let allotment = self.division.divide_for(id as u64, &room, MonoMs(self.now));
        let before = self.passed();
        self.proxies[id].requests(late);
        self.late += self.passed() - before;
        if let Some(allotment) = allotment {
            self.proxies[id].takes(allotment);
        }
        self.is_within_the_room(room);
    }

    /// Charges what is due.
    fn pays(&mut self, second: bool) {
        let due = self.division.due(second);
        self.charge(due);
        self.division.charged(due, &Position::at(UnixMs(self.now), self.window_ms));
    }

    fn divides(&mut self) {
        self.pays(true);
        let room = self.room();
        for (id, allotment) in self.division.divide(&room, MonoMs(self.now)) {
            self.proxies[id as usize].takes(allotment);
        }
    }

    /// Whoever holds tokens holds no more than is reserved for it.
    fn is_within_the_room(&self, room: Room) {
        if self.window_ms >= PACED_BELOW_MS {
            let held: u64 =
                self.proxies.iter().map(|proxy| proxy.allowed + proxy.tokens.floor() as u64).sum();
            let reserved = self.division.reserved(MonoMs(self.now));
            assert!(held <= reserved, "{held} held, {reserved} reserved, {room:?}");
        }
    }

    /// `seconds` in which each proxy gets its `demand` of requests a second and reports every five seconds, not all at once.
    fn runs(&mut self, seconds: u64, demand: &[u64]) {
        for second in 0..seconds {
            for (id, requests) in demand.iter().enumerate() {
                self.proxies[id].waits(1_000);
                self.proxies[id].requests(*requests);
                if (second + id as u64).is_multiple_of(5) {
                    self.reports(id, 0);
                }
            }
            self.divides();
            self.now += 1_000;
        }
    }

    fn passed(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.passed).sum()
    }
}

#[test]
fn a_busy_proxy_gets_the_limit_and_no_more() {
    let mut world = World::new(1, 100, MINUTE_MS);
    world.now = 960_000;
    world.runs(55, &[50]);
    assert!((97..=100).contains(&world.passed()), "{}", world.passed());
}

/// The first bucket is most of the limit, so a burst passes at once.
#[test]
fn a_burst_passes_at_once() {
    let mut world = World::new(1, 1_000, MINUTE_MS);
    world.reports(0, 0);
    assert_eq!(world.division.allotment(0), Allotment::Tokens(625));
    world.proxies[0].requests(1_000);
    assert_eq!(world.passed(), 625);
}

#[test]
fn the_part_of_an_idle_proxy_goes_to_a_busy_one() {
    let mut world = World::new(2, 1_000, 3_600_000);
    world.now = 3_600_000;
    // The idle proxy comes first, and gets the largest part.
    world.reports(0, 0);
    world.reports(1, 0);
    let Allotment::Tokens(first) = world.division.allotment(0) else { panic!("tokens") };
    world.runs(90, &[0, 100]);
    let Allotment::Tokens(idle) = world.division.allotment(0) else { panic!("tokens") };
    assert!(first > 10 && idle <= 2, "{first}, then {idle}");
    let passed = world.passed();
    assert!((950..=1_000).contains(&passed), "{passed}");
}

/// Both get their part, though one asked first.
#[test]
fn equal_proxies_pass_about_equally() {
    let mut world = World::new(2, 10_000, 3_600_000);
    world.now = 3_600_000;
    world.runs(120, &[500, 500]);
    let [one, other] = [world.proxies[0].passed, world.proxies[1].passed];
    assert!((9_900..=10_000).contains(&(one + other)), "{one} and {other}");
    assert!(one.min(other) * 3 > one.max(other), "{one} and {other}");
}

/// A key of one request has one holder.
#[test]
fn the_last_request_is_given_to_one() {
    let mut world = World::new(3, 1, MINUTE_MS);
    for id in 0..3 {
        world.reports(id, 0);
    }
    let held: Vec<_> = (0..3).map(|id| world.division.allotment(id)).collect();
    assert_eq!(held, [Allotment::Tokens(1), Allotment::Nothing, Allotment::Nothing]);
}

#[test]
fn use_by_others_takes_back_what_was_given() {
    let mut world = World::new(1, 100, MINUTE_MS);
    world.reports(0, 0);
    assert_eq!(world.division.allotment(0), Allotment::Tokens(62));
    world.charge(20);
    world.divides();
    assert_eq!(world.division.allotment(0), Allotment::Tokens(62), "what is left covers it");
    world.charge(80);
    world.divides();
    assert_eq!(world.division.allotment(0), Allotment::Nothing);
}

#[test]
fn what_a_lost_proxy_held_is_reserved_and_then_charged() {
    let mut world = World::new(2, 100, MINUTE_MS);
    world.reports(0, 0);
    world.division.leave(0, MonoMs(world.now));
    let reserved = world.division.reserved(MonoMs(world.now));
    assert!((50..=75).contains(&reserved), "{reserved}");
    world.now += VALID_MS;
    world.divides();
    world.divides();
    assert_eq!((world.cells.1, world.room().left), (reserved, 100 - reserved), "it counts as spent");
}

/// A proxy is lost every ten seconds, with all that it has passed since its last report.
#[test]
fn proxies_that_are_lost_again_and_again_stay_within_the_limit() {
    for window_ms in [MINUTE_MS, 10 * MINUTE_MS, 3_600_000] {
        let limit = 600 * window_ms / MINUTE_MS;
        let mut world = World::new(0, limit, window_ms);
        world.now = 36_000_000;
        let mut passed = Vec::new();
        for id in 0..360 {
            world.proxies.push(Proxy::default());
            assert!(world.division.join(id as u64, 0, MonoMs(world.now)));
            for second in 0..10 {
                let before = world.passed();
                world.proxies[id].waits(1_000);
                if second % 5 == 0 {
                    world.reports(id, 0);
                }
                world.proxies[id].requests(100);
                world.divides();
                world.now += 1_000;
                passed.push(world.passed() - before);
            }
            world.division.leave(id as u64, MonoMs(world.now));
            let lost = &mut world.proxies[id];
            *lost = Proxy { passed: lost.passed, ..Proxy::default() };
        }
        let seconds = usize::try_from(window_ms / 1_000).unwrap();
        let worst = passed.windows(seconds).map(|window| window.iter().sum::<u64>()).max().unwrap();
        let total: u64 = passed.iter().sum();
        let (all, lives) = (
            600 * passed.len() as u64 / 60,
            passed.chunks(10).filter(|life| life.iter().sum::<u64>() > 0).count(),
        );
        std::println!(
            "{window_ms} ms: {worst} of {limit} in the worst window, {total} of {all}, {lives} of 360 lives"
        );
        assert!(worst <= limit * 5 / 4, "{worst} of {limit}");
        // They are asked for ten times the limit, and each may have spent what it held for twenty seconds.
        assert!(total * 4 > all, "{total} of {all}");
        assert!(lives > 240 || window_ms > 10 * MINUTE_MS, "{lives} of 360 proxies passed something");
    }
}

#[test]
fn a_proxy_that_ends_after_a_report_returns_what_it_has() {
    let mut world = World::new(3, 600, MINUTE_MS);
    world.reports(0, 0);
    world.reports(1, 0);
    world.now += LAST_REPORT_MS;
    let both = world.division.reserved(MonoMs(world.now));
    world.division.end(0, MonoMs(world.now));
    let one = world.division.reserved(MonoMs(world.now));
    assert!(one < both * 2 / 3, "{one} of {both}");
    world.now += 1;
    world.division.end(1, MonoMs(world.now));
    let lost = world.division.reserved(MonoMs(world.now));
    world.now += VALID_MS;
    world.divides();
    world.divides();
    assert_eq!(world.cells.1, lost, "its last report was too long ago");
}

/// A limit of a month loses little by an Envoy that is restarted.
#[test]
fn a_restart_costs_little_of_a_long_window() {
    let mut world = World::new(1, 1_000_000, 31 * 24 * 3_600_000);
    world.reports(0, 0);
    world.division.leave(0, MonoMs(world.now));
    assert!(world.division.reserved(MonoMs(world.now)) < 100);
}

#[test]
fn short_windows_are_divided_as_rates() {
    let mut world = World::new(2, 100, 1_000);
    world.runs(120, &[200, 200]);
    let before = world.passed();
    world.runs(60, &[200, 200]);
    let rate = (world.passed() - before) / 60;
    assert!((90..=107).contains(&rate), "{rate} a second");
    world.runs(30, &[0, 200]);
    let before = world.proxies[1].passed;
    world.runs(60, &[0, 200]);
    let rate = (world.proxies[1].passed - before) / 60;
    assert!((85..=100).contains(&rate), "{rate} a second for the busy one");
}

#[test]
fn a_rate_below_one_is_one_token_in_several_seconds() {
    let mut world = World::new(3, 1, 1_000);
    world.runs(60, &[9, 9, 9]);
    let rates: Vec<_> = (0..3).map(|id| world.division.allotment(id)).collect();
    assert!(
        rates.iter().all(|rate| matches!(rate, Allotment::Rate { tokens: 3, seconds: 9..=10 })),
        "{rates:?}"
    );
    let mut none = World::new(1, 0, 1_000);
    none.runs(10, &[9]);
    assert_eq!((none.division.allotment(0), none.passed()), (Allotment::Nothing, 0));
}

#[test]
fn proxies_are_bounded() {
    let mut division = Division::new(MINUTE_MS);
    let joined = (0..=MAX_SHARES as u64).filter(|id| division.join(*id, *id, MonoMs(1))).count();
    assert_eq!(joined, MAX_SHARES);
    assert!(division.join(0, 0, MonoMs(1)), "one that is known may come again");
    assert_eq!(division.divide_for(MAX_SHARES as u64, &World::new(0, 5, MINUTE_MS).room(), MonoMs(1)), None);
}

#[test]
fn proxies_of_one_owner_leave_room_to_others() {
    let mut division = Division::new(MINUTE_MS);
    let joined = (0..=MAX_SHARES as u64).filter(|id| division.join(*id, 1, MonoMs(1))).count();
    assert_eq!(joined, MAX_SHARES / 4 * 3);
    assert!(division.join(10_000, 2, MonoMs(1)));
    // Those that are lost may still spend what they have.
    (0..10).for_each(|id| division.leave(id, MonoMs(1)));
    assert!(!division.join(10_001, 1, MonoMs(1)));
    let share = division.remove(20).unwrap();
    assert!(division.join(10_002, 3, MonoMs(1)));
    let mut other = Division::new(MINUTE_MS);
    assert!(other.accept(20, share.clone(), MonoMs(1)), "another limit");
    division.put_back(20, share);
    division.expire(MonoMs(1 + VALID_MS));
    assert!(division.join(10_003, 1, MonoMs(1)));
}

#[derive(Clone, Debug)]
enum Step {
    Requests(usize, u64),
    Reports(usize, u64),
    Divides,
    Waits(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize, 0..200_u64).prop_map(|(id, requests)| Step::Requests(id, requests)),
        4 => (0..4_usize, prop_oneof![Just(0), 0..50_u64]).prop_map(|(id, late)| Step::Reports(id, late)),
        2 => Just(Step::Divides),
        3 => (0..2_000_u64).prop_map(Step::Waits),
    ]
}

proptest! {
    /// However requests, reports and divisions follow each other: proxies that report within the horizon stay within the limit.
    #[test]
    fn proxies_together_stay_within_the_limit(
        limit in 0..2_000_u64,
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(4, limit, 31 * 24 * 3_600_000);
        let mut reported = [world.now; 4];
        for step in steps {
            match step {
                Step::Requests(id, requests) => world.proxies[id].requests(requests),
                Step::Reports(id, late) => {
                    world.reports(id, late);
                    reported[id] = world.now;
                }
                Step::Divides => world.divides(),
                Step::Waits(ms) => {
                    for (id, reported) in reported.iter_mut().enumerate() {
                        if world.now + ms - *reported > HORIZON_MS {
                            world.reports(id, 0);
                            *reported = world.now;
                        }
                    }
                    world.proxies.iter_mut().for_each(|proxy| proxy.waits(ms));
                    world.now += ms;
                }
            }
            let (passed, late) = (world.passed(), world.late);
            prop_assert!(passed <= limit + late, "{passed} of {limit}, {late} of them late");
        }
    }

    /// Whatever is reported, nothing overflows and no allotment exceeds the limit.
    #[test]
    fn any_report_is_taken(
        reports in prop::collection::vec((0..3_u64, any::<u64>(), any::<u64>(), any::<u32>()), 1..50),
        limit in any::<u64>(),
        left in any::<u64>(),
        short in any::<bool>(),
    ) {
        let cell_ms = if short { 1_000 } else { MINUTE_MS };
        let mut division = Division::new(cell_ms);
        let mut now = MonoMs(0);
        for (id, allowed, denied, ms) in reports {
            now = now.after(ms.into());
            division.join(id, 0, now);
            division.report(id, Report { allowed, denied, within_ms: ms.into() }, now);
            let at = Position::at(UnixMs(now.0), cell_ms);
            prop_assert!(division.due(true) > 0 || allowed == 0);
            division.charged(division.due(true), &at);
            let room = Room { limit, left: left.min(limit), at };
            let one = division.divide_for(id, &room, now).map(|allotment| (id, allotment));
            for (_, allotment) in one.into_iter().chain(division.divide(&room, now)) {
                match allotment {
                    Allotment::Nothing => {}
                    Allotment::Tokens(tokens) => prop_assert!(tokens <= left.min(limit)),
                    Allotment::Rate { tokens, seconds } => {
                        prop_assert!(tokens > 0 && seconds > 0);
                        prop_assert!(u128::from(tokens) <= u128::from(limit) * u128::from(seconds));
                    }
                }
            }
        }
    }
}

/// A limit is replaced, by itself or by another, while a proxy holds tokens of which it has reported nothing.
#[test]
fn a_share_that_moves_to_another_division_stays_reserved() {
    for window_ms in [3_600_000, 24 * 3_600_000] {
        let mut world = World::new(2, 100, 3_600_000);
        world.reports(0, 0);
        let held = world.division.allotment(0);
        let Allotment::Tokens(tokens @ 1..) = held else { panic!("{held:?}") };
        let share = world.division.remove(0).unwrap();
        assert_eq!(world.division.reserved(MonoMs(world.now)), 0);
        (world.window_ms, world.division) = (window_ms, Division::new(window_ms));
        assert!(world.division.accept(0, share, MonoMs(world.now)));
        assert!(world.division.join(1, 0, MonoMs(world.now)));
        world.divides();
        world.reports(1, 0);
        assert_eq!(world.division.allotment(0), held, "it has not reported, so nothing replaces its tokens");
        world.proxies.iter_mut().for_each(|proxy| proxy.requests(100));
        (0..2).for_each(|id| world.reports(id, 0));
        assert!((tokens..=100).contains(&world.passed()), "{} of 100", world.passed());
    }
}

/// What may have been spent at a rate is reserved of an amount; of a rate nothing is.
#[test]
fn a_share_moves_between_rates_and_amounts() {
    let mut paced = World::new(1, 100, 1_000);
    paced.runs(20, &[50]);
    let share = paced.division.remove(0).unwrap();
    let mut amounts = Division::new(MINUTE_MS);
    assert!(amounts.accept(0, share, MonoMs(paced.now)));
    let reserved = amounts.reserved(MonoMs(paced.now));
    assert!(reserved >= 50, "{reserved}");
    let room = World::new(0, 1_000, MINUTE_MS).room();
    assert!(matches!(amounts.divide_for(0, &room, MonoMs(paced.now)), Some(Allotment::Tokens(_))));
    let share = amounts.remove(0).unwrap();
    let mut rates = Division::new(1_000);
    assert!(rates.accept(0, share, MonoMs(paced.now)));
    assert_eq!((rates.reserved(MonoMs(paced.now)), rates.allotment(0)), (0, Allotment::Nothing));
}
