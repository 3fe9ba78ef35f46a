//! Costs that only the response tells: what is reserved, what is settled, and what becomes of it where nobody settles.

use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Check, Decision, Limiter, Outcome, Policy};
use crate::model::key::{HARD_LIMIT_RESOLUTION, Key, KeyParts};
use crate::model::time::MonoMs;
use crate::model::window::Position;
use std::vec::Vec;

const WITHIN_MS: u32 = 600_000;

/// A check whose cost of `reserve` the response replaces.
pub(super) fn deferred_check(key: &Key, limit: u64, reserve: u64) -> Check<'_> {
    let usual = check(key, limit, reserve);
    Check { policy: Policy { settles_within_ms: WITHIN_MS, ..usual.policy }, ..usual }
}

impl World {
    pub(super) fn limiter(&mut self, process: usize, worker: usize) -> &mut Limiter {
        &mut self.processes[process].workers[worker].as_mut().unwrap().limiter
    }

    /// The response of a request says what it cost.
    pub(super) fn settle(&mut self, (process, worker): (usize, usize), request: u64, cost: u64) {
        let now = MonoMs(self.now);
        let Process { shared, workers, .. } = &mut self.processes[process];
        workers[worker].as_mut().unwrap().limiter.settle_cost(shared, request, |_| cost, now);
    }

    /// A request, however long its decision takes.
    pub(super) fn begin(&mut self, process: usize, worker: usize, check: Check<'_>) -> (u64, Outcome) {
        let (id, outcome) = self.request(process, worker, &[check]);
        (id, self.wait_for(id, outcome).1)
    }

    /// One that passes.
    pub(super) fn begins(&mut self, process: usize, worker: usize, check: Check<'_>) -> Option<u64> {
        let (id, outcome) = self.begin(process, worker, check);
        allowed(&outcome).then_some(id)
    }

    /// Spent in all cells of the process' entry, and reserved in it.
    pub(super) fn held(&mut self, key: &Key) -> (u64, u64) {
        let entry = self.entry(0, key).unwrap();
        let reserved = entry.reservations.iter().map(|held| held.amount).sum();
        (entry.cells().map(|(_, cell)| cell.own).sum(), reserved)
    }
}

fn cause(outcome: Outcome) -> Cause {
    denial(outcome).cause
}

#[test]
fn what_is_under_way_holds_its_reserve() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    let first = world.begins(0, 0, deferred_check(&key, 10, 4)).unwrap();
    let second = world.begins(0, 1, deferred_check(&key, 10, 4)).unwrap();
    assert_eq!(world.held(&key), (0, 8));
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 10, 4)).1), Cause::Reserved);
    world.settle((0, 0), first, 1);
    assert_eq!(world.held(&key), (1, 4), "less than reserved gives the rest back");
    let third = world.begins(0, 1, deferred_check(&key, 10, 4)).unwrap();
    assert_eq!(world.entry(0, &key).unwrap().reservations.len(), 1, "one reservation for each worker");
    world.settle((0, 1), second, 30);
    world.settle((0, 1), second, 30);
    assert_eq!(world.held(&key), (31, 4), "more is charged in full, and once");
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 10, 4)).1), Cause::Limit);
    world.settle((0, 1), third, 0);
    assert_eq!(world.held(&key), (31, 0));
}

#[test]
fn a_reserve_of_nothing_only_checks() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let ids: Vec<u64> = (0..9).map(|_| world.begins(0, 0, deferred_check(&key, 5, 0)).unwrap()).collect();
    assert_eq!(world.held(&key), (0, 0));
    for id in ids {
        world.settle((0, 0), id, 2);
    }
    assert_eq!(world.held(&key), (18, 0));
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 5, 0)).1), Cause::Limit);
}

#[test]
fn a_response_that_never_comes_is_spent_and_a_late_one_only_adds() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let late = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    let cheap = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    world.run(u64::from(WITHIN_MS) - 1_000);
    let fresh = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    assert_eq!(world.held(&key), (0, 30));
    world.run(1_100);
    assert_eq!(world.held(&key), (20, 10), "each has its own time");
    world.settle((0, 0), late, 15);
    world.settle((0, 0), cheap, 1);
    assert_eq!(world.held(&key), (25, 10));
    world.settle((0, 0), fresh, 1);
    assert_eq!(world.held(&key), (26, 0));
    assert!(!world.limiter(0, 0).has_deferred());
}

#[test]
fn what_a_dead_worker_held_counts_as_spent() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.kill(0, 0);
    world.run(u64::from(WITHIN_MS));
    assert_eq!(cause(world.begin(0, 1, deferred_check(&key, 10, 6)).1), Cause::Reserved);
    world.run(2_000);
    assert_eq!(cause(world.begin(0, 1, deferred_check(&key, 10, 6)).1), Cause::Limit);
    assert!(world.begins(0, 1, deferred_check(&key, 10, 4)).is_some());
    assert_eq!(world.held(&key), (6, 4));
}

#[test]
fn a_worker_that_ends_spends_what_it_held() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.end(0, 0);
    assert_eq!(world.held(&key), (6, 0));
}

#[test]
fn an_open_request_counts_in_full_in_every_cell_until_it_ends_in_one() {
    let mut world = World::alone(1, 1);
    let key = key("a", MINUTE);
    let long = world.begins(0, 0, deferred_check(&key, 10, 10)).unwrap();
    for minutes in [1, 2, 5] {
        world.run(minutes * MINUTE);
        let refused = world.begin(0, 0, deferred_check(&key, 10, 10)).1;
        assert_eq!(cause(refused), Cause::Reserved, "after {minutes} more minutes");
    }
    let sequence = Position::at(world.unix(), MINUTE).sequence;
    world.settle((0, 0), long, 7);
    let entry = world.entry(0, &key).unwrap();
    assert_eq!((entry.sequence, entry.current.own, entry.previous.own), (sequence, 7, 0));
}

#[test]
fn an_entry_with_open_requests_does_not_leave_its_bucket() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
    let key = key("a", 1_000);
    let id = world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.run(10_000);
    let other = &keys(1, 1_000)[0];
    assert!(world.begins(0, 0, deferred_check(other, 10, 6)).is_some(), "it goes to the overflow cell");
    world.settle((0, 0), id, 9);
    assert_eq!(world.entry(0, &key).unwrap().current.own, 9);
}

#[test]
fn requests_in_an_overflow_cell_are_settled_there() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
    world.begins(0, 0, deferred_check(&key("a", HOUR), 10, 6)).unwrap();
    let (one, other) = (key("b", HOUR), key("c", HOUR));
    let first = world.begins(0, 0, deferred_check(&one, 10, 5)).unwrap();
    let second = world.begins(0, 0, deferred_check(&other, 10, 5)).unwrap();
    assert_eq!(cause(world.begin(0, 0, deferred_check(&other, 10, 5)).1), Cause::Reserved);
    world.settle((0, 0), first, 1);
    world.settle((0, 0), second, 2);
    let left = budget(world.begin(0, 0, check(&other, 10, 1)).1);
    assert_eq!(left.remaining, 10 - 1 - 2 - 1);
}

#[test]
fn where_there_is_no_room_the_reserve_is_spent_at_once() {
    let mut world = World::alone(1, 33);
    let key = key("a", HOUR);
    let ids: Vec<u64> =
        (0..33).map(|at| world.begins(0, at, deferred_check(&key, 1_000, 10)).unwrap()).collect();
    assert_eq!(world.held(&key), (10, 320), "32 workers have a reservation");
    world.settle((0, 32), ids[32], 3);
    assert_eq!(world.held(&key), (10, 320), "what is spent does not come back");
    world.settle((0, 31), ids[31], 3);
    assert_eq!(world.held(&key), (13, 310));
}

#[test]
fn a_denied_request_over_several_cells_holds_nothing() {
    let mut world = World::alone(1, 1);
    let (wide, narrow) = (key("wide", HOUR), key("narrow", HOUR));
    let checks = [deferred_check(&wide, 100, 10), Check { rule: 1, ..deferred_check(&narrow, 15, 10) }];
    let (id, outcome) = world.request(0, 0, &checks);
    assert!(allowed(&outcome));
    assert_eq!((world.held(&wide), world.held(&narrow)), ((0, 10), (0, 10)));
    let (refused, outcome) = world.request(0, 0, &checks);
    assert_eq!((cause(outcome), world.held(&wide)), (Cause::Reserved, (0, 10)));
    assert!(!world.limiter(0, 0).is_deferred(refused));
    let now = MonoMs(world.now);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let limiter = &mut workers[0].as_mut().unwrap().limiter;
    limiter.settle_cost(shared, id, |rule| [3, 4][usize::from(rule)], now);
    assert_eq!((world.held(&wide), world.held(&narrow)), ((3, 0), (4, 0)));
}

#[test]
fn rules_of_one_cell_cost_what_the_dearest_says() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let checks = [check(&key, 100, 5), Check { rule: 1, ..deferred_check(&key, 100, 10) }];
    let (id, _) = world.request(0, 0, &checks);
    assert_eq!(world.held(&key), (0, 10));
    world.settle((0, 0), id, 2);
    assert_eq!(world.held(&key), (5, 0), "one of them knew what it costs at the least");
}

#[test]
fn a_shadow_rule_reserves_and_settles_as_others_do() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let usual = deferred_check(&key, 10, 6);
    let shadow = Check { policy: Policy { shadow: true, ..usual.policy }, ..usual };
    let (id, first) = world.request(0, 0, &[shadow]);
    let (_, second) = world.request(0, 0, &[shadow]);
    assert_eq!((first.shadow_denied, second.shadow_denied), (0, 1));
    assert!(allowed(&second), "it never denies");
    world.settle((0, 0), id, 2);
    assert_eq!(world.held(&key), (2, 0));
}

#[test]
fn several_processes_hold_together() {
    let mut world = World::connected(2, 1);
    let key = key("a", HOUR);
    let (limit, reserve) = (1_000, 50);
    let mut open = Vec::new();
    for turn in 0..60 {
        if let (id, Outcome { decision: Decision::Allow(_), .. }) =
            world.begin(turn % 2, 0, deferred_check(&key, limit, reserve))
        {
            open.push((turn % 2, id));
        }
        world.run(5);
    }
    // What a process may hold without asking is a part of what is left.
    assert!((20..=22).contains(&open.len()), "{} under way", open.len());
    for (process, id) in open {
        world.settle((process, 0), id, 10);
    }
    world.run(200);
    assert!(
        world.begin(0, 0, deferred_check(&key, limit, reserve)).1.passes(),
        "what was granted is filled up"
    );
}

#[test]
fn a_herd_at_several_processes_holds_together() {
    for latency in [(1, 1), (0, 8), (5, 30)] {
        let mut world = World::connected(2, 2);
        world.latency = latency;
        let key = key("a", HOUR);
        let usual = deferred_check(&key, 1_000, 50);
        let patient = Check { policy: Policy { timeout_ms: 500, ..usual.policy }, ..usual };
        let sent: Vec<_> = (0..80).map(|turn| world.request(turn % 2, turn / 2 % 2, &[patient])).collect();
        let under_way =
            sent.into_iter().filter(|(id, outcome)| allowed(&world.wait_for(*id, *outcome).1)).count();
        assert!((18..=24).contains(&under_way), "{under_way} under way, {latency:?}");
    }
}

/// The only process whose stream is not routed yet, connected again just now.
fn connects(world: &mut World, process: usize) {
    world.routes.remove(&(process, 0));
    while !world.limiter(process, 0).is_connected() {
        world.run(1);
    }
}

#[test]
fn an_open_request_after_a_restart_is_not_told_its_own_use_as_that_of_others() {
    for resolution in [1, HARD_LIMIT_RESOLUTION] {
        let mut world = World::connected(2, 1);
        let usual = key("a", HOUR);
        let key = Key::new(&KeyParts { resolution, ..usual.parts() }).unwrap();
        let first = world.begins(0, 0, deferred_check(&key, 100, 1)).unwrap();
        world.settle((0, 0), first, 40);
        assert!(world.passes(1, 0, &[check(&key, 100, 30)]));
        world.run(500);
        assert_eq!(world.entry(1, &key).unwrap().current.region_others, 40);
        // The other process repeats what it knows before this one is there again.
        world.routes.insert((0, 0), 9);
        world.restart_region();
        world.run(2_000);
        connects(&mut world, 0);
        assert!(world.begins(0, 0, deferred_check(&key, 100, 1)).is_some());
        let current = world.entry(0, &key).unwrap().current;
        assert_eq!((current.own, current.region_others), (40, 30), "resolution {resolution}");
    }
}

#[test]
fn use_below_a_grant_is_reported_after_the_region_was_lost() {
    let mut world = World::connected(2, 1);
    let key = key("a", HOUR);
    let check = || deferred_check(&key, 10_000, 100);
    // Requests that are open together: the region grants what they reserve, and their responses cost less.
    let open: Vec<u64> = (0..30).map(|_| world.begins(0, 0, check()).unwrap()).collect();
    open.into_iter().for_each(|request| world.settle((0, 0), request, 5));
    world.run(100);
    let at = Position::at(world.unix(), key.parts().cell_ms()).sequence;
    assert!(world.regional(&key, at).0 > 2_000, "the reserve was granted");
    world.restart_region();
    world.run(1_000);
    for _ in 0..100 {
        let request = world.begins(0, 0, check()).unwrap();
        world.settle((0, 0), request, 10);
        world.run(10);
    }
    world.run(100);
    assert_eq!((world.held(&key).0, world.regional(&key, at).0), (1_150, 1_150));
}
