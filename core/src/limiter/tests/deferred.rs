//! Deferred costs, which only the response states: reserves, settling, and responses that do not arrive.

use super::harness::*;
use crate::limiter::RuleSet;
use crate::limiter::table::{Geometry, MAX_DIVERTED};
use crate::limiter::{Cause, Check, Decision, Limiter, Outcome, Policy};
use crate::model::key::{HARD_LIMIT_RESOLUTION, Key, KeyParts};
use crate::model::time::MonoMs;
use crate::model::window::Position;
use std::vec;
use std::vec::Vec;

const WITHIN_MS: u32 = 600_000;

/// A check with a deferred cost: the response replaces `reserve`.
pub(super) fn deferred_check(key: &Key, limit: u64, reserve: u64) -> Check<'_> {
    let usual = check(key, limit, reserve);
    Check { policy: Policy { settles_within_ms: WITHIN_MS, ..usual.policy }, ..usual }
}

impl World {
    pub(super) fn limiter(&mut self, process: usize, worker: usize) -> &mut Limiter {
        &mut self.processes[process].workers[worker].as_mut().unwrap().limiter
    }

    /// Settles a request at the cost that its response states.
    pub(super) fn settle(&mut self, (process, worker): (usize, usize), request: u64, cost: u64) {
        let now = MonoMs(self.now);
        let Process { shared, workers, .. } = &mut self.processes[process];
        workers[worker].as_mut().unwrap().limiter.settle_cost(shared, request, |_, _| Some(cost), now);
    }

    /// Sends a request and waits for its outcome.
    pub(super) fn begin(&mut self, process: usize, worker: usize, check: Check<'_>) -> (u64, Outcome) {
        let (id, outcome) = self.request(process, worker, &[check]);
        (id, self.wait_for(id, outcome).1)
    }

    /// The same. Returns the id of a request that passes.
    pub(super) fn begins(&mut self, process: usize, worker: usize, check: Check<'_>) -> Option<u64> {
        let (id, outcome) = self.begin(process, worker, check);
        allowed(&outcome).then_some(id)
    }

    /// The sum spent in all cells of the first process' entry, and the sum reserved in it.
    pub(super) fn spent_and_reserved(&mut self, key: &Key) -> (u64, u64) {
        let entry = self.entry(0, key).unwrap();
        let reserved = entry.reservations.iter().map(|reservation| reservation.amount).sum();
        (entry.cells().map(|(_, cell)| cell.own).sum(), reserved)
    }
}

fn cause(outcome: Outcome) -> Cause {
    denial(&outcome).cause
}

#[test]
fn a_request_in_flight_holds_its_reserve() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    let first = world.begins(0, 0, deferred_check(&key, 10, 4)).unwrap();
    let second = world.begins(0, 1, deferred_check(&key, 10, 4)).unwrap();
    assert_eq!(world.spent_and_reserved(&key), (0, 8));
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 10, 4)).1), Cause::Reserved);
    world.settle((0, 0), first, 1);
    assert_eq!(world.spent_and_reserved(&key), (1, 4), "a cost below the reserve returns the rest");
    let third = world.begins(0, 1, deferred_check(&key, 10, 4)).unwrap();
    assert_eq!(world.entry(0, &key).unwrap().reservations.len(), 1, "one reservation for each worker");
    world.settle((0, 1), second, 30);
    world.settle((0, 1), second, 30);
    assert_eq!(world.spent_and_reserved(&key), (31, 4), "a higher cost is charged in full, and once");
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 10, 4)).1), Cause::Limit);
    world.settle((0, 1), third, 0);
    assert_eq!(world.spent_and_reserved(&key), (31, 0));
}

/// What the aggregator shows as reserved, by process.
fn shown_as_reserved(world: &World, key: &Key) -> Vec<u64> {
    let parts = key.parts();
    let explained = world.regions[0].explain(parts.workspace, parts.namespace, parts.identifier);
    let mut amounts: Vec<u64> =
        explained.iter().flat_map(|key| &key.reserved).map(|reserved| reserved.amount).collect();
    amounts.sort_unstable();
    amounts
}

#[test]
fn the_aggregator_shows_what_is_reserved_and_counts_what_is_settled() {
    let mut world = World::connected(2, 2);
    let key = key("a", HOUR);
    let first = world.begins(0, 0, deferred_check(&key, 1_000, 40)).unwrap();
    let second = world.begins(0, 1, deferred_check(&key, 1_000, 50)).unwrap();
    let other = world.begins(1, 0, deferred_check(&key, 1_000, 7)).unwrap();
    world.run(200);
    assert_eq!(shown_as_reserved(&world, &key), [7, 90], "of all workers of a process together");
    let sequence = world.entry(0, &key).unwrap().sequence;
    assert_eq!(world.regional(&key, sequence).0, 0, "what is reserved is no use");
    world.settle((0, 0), first, 3);
    world.settle((1, 0), other, 200);
    world.run(200);
    assert_eq!(shown_as_reserved(&world, &key), [50]);
    assert_eq!(world.regional(&key, sequence).0, 203);
    world.settle((0, 1), second, 0);
    world.run(200);
    assert!(shown_as_reserved(&world, &key).is_empty(), "also where nothing is charged");
}

#[test]
fn what_is_reserved_under_several_limits_is_shown_and_so_is_what_expires() {
    let mut world = World::connected(1, 1);
    let keys = [key("a", HOUR), key("b", HOUR)];
    let checks: Vec<Check<'_>> = keys.iter().map(|key| deferred_check(key, 100, 10)).collect();
    let (id, outcome) = world.request(0, 0, &checks);
    assert!(allowed(&world.wait_for(id, outcome).1));
    world.run(200);
    let shown = |world: &World| keys.each_ref().map(|key| shown_as_reserved(world, key));
    assert_eq!(shown(&world), [vec![10], vec![10]]);
    world.run(u64::from(WITHIN_MS) + 200);
    assert!(shown(&world).iter().all(Vec::is_empty), "then it is used");
}

#[test]
fn a_reserve_of_zero_only_checks() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let ids: Vec<u64> = (0..9).map(|_| world.begins(0, 0, deferred_check(&key, 5, 0)).unwrap()).collect();
    assert_eq!(world.spent_and_reserved(&key), (0, 0));
    for id in ids {
        world.settle((0, 0), id, 2);
    }
    assert_eq!(world.spent_and_reserved(&key), (18, 0));
    assert_eq!(cause(world.begin(0, 0, deferred_check(&key, 5, 0)).1), Cause::Limit);
}

#[test]
fn a_missing_response_costs_its_reserve_and_a_late_one_adds_only_the_excess() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let late = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    let cheap = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    world.run(u64::from(WITHIN_MS) - 1_000);
    let fresh = world.begins(0, 0, deferred_check(&key, 100, 10)).unwrap();
    assert_eq!(world.spent_and_reserved(&key), (0, 30));
    world.run(1_100);
    assert_eq!(world.spent_and_reserved(&key), (20, 10), "each has its own deadline");
    world.settle((0, 0), late, 15);
    world.settle((0, 0), cheap, 1);
    assert_eq!(world.spent_and_reserved(&key), (25, 10));
    world.settle((0, 0), fresh, 1);
    assert_eq!(world.spent_and_reserved(&key), (26, 0));
    assert!(!world.limiter(0, 0).has_deferred());
}

#[test]
fn the_reserves_of_a_dead_worker_count_as_spent() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.kill(0, 0);
    world.run(u64::from(WITHIN_MS));
    assert_eq!(cause(world.begin(0, 1, deferred_check(&key, 10, 6)).1), Cause::Reserved);
    world.run(2_000);
    assert_eq!(cause(world.begin(0, 1, deferred_check(&key, 10, 6)).1), Cause::Limit);
    assert!(world.begins(0, 1, deferred_check(&key, 10, 4)).is_some());
    assert_eq!(world.spent_and_reserved(&key), (6, 4));
}

#[test]
fn a_worker_that_shuts_down_spends_its_reserves() {
    let mut world = World::alone(1, 2);
    let key = key("a", HOUR);
    world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.end(0, 0);
    assert_eq!(world.spent_and_reserved(&key), (6, 0));
}

#[test]
fn a_reserve_counts_in_every_cell_until_the_response_is_charged_to_one() {
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
fn an_entry_with_reserves_is_not_evicted() {
    let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
    let key = key("a", 1_000);
    let id = world.begins(0, 0, deferred_check(&key, 10, 6)).unwrap();
    world.run(10_000);
    let other = &keys(1, 1_000)[0];
    assert!(
        world.begins(0, 0, deferred_check(other, 10, 6)).is_some(),
        "it is reserved in the overflow cell"
    );
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
fn a_deferred_cost_in_an_overflow_cell_counts_for_its_key_once_that_has_a_place() {
    for cost in [1, 4, 7] {
        let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
        world.run(50);
        assert!(world.passes(0, 0, &[check(&key("a", 1_000), 10, 1)]));
        let late = key("b", HOUR);
        let request = world.begins(0, 0, deferred_check(&late, 10, 4)).unwrap();
        world.run(5_000);
        assert_eq!(cause(world.begin(0, 0, check(&late, 10, 7)).1), Cause::Reserved, "4 are reserved");
        let left = budget(world.begin(0, 0, check(&late, 10, 2)).1);
        assert_eq!(left.remaining, 10 - 4 - 2);
        world.settle((0, 0), request, cost);
        let passed = (0..20).filter(|_| world.passes(0, 0, &[check(&late, 10, 1)])).count() as u64;
        assert_eq!(passed, 10 - 2 - cost, "after a cost of {cost}");
        assert_eq!(world.entry(0, &late).unwrap().current.own, 10);
    }
}

#[test]
fn a_deferred_cost_that_no_record_tells_apart_is_settled_as_well() {
    for cost in [1, 4, 7] {
        let mut world = World::with(1, 1, Geometry { buckets: 1, keys_per_bucket: 1 }, true);
        world.run(50);
        assert!(world.passes(0, 0, &[check(&key("a", 1_000), 10, 1)]));
        let late = key("b", HOUR);
        let request = world.begins(0, 0, deferred_check(&late, 30, 4)).unwrap();
        // Keys with more use than there are records: the smallest two, of 4 and 5, become one.
        for other in &keys(MAX_DIVERTED, HOUR) {
            assert!(world.passes(0, 0, &[check(other, 1_000, 5)]));
        }
        world.run(5_000);
        assert_eq!(cause(world.begin(0, 0, check(&late, 30, 22)).1), Cause::Reserved, "4 are reserved");
        assert_eq!(budget(world.begin(0, 0, check(&late, 30, 1)).1).remaining, 30 - 5 - 4 - 1);
        assert_eq!(budget(world.begin(0, 0, check(&late, 30, 1)).1).remaining, 30 - 5 - 4 - 2, "still");
        world.settle((0, 0), request, cost);
        let passed = (0..40).filter(|_| world.passes(0, 0, &[check(&late, 30, 1)])).count() as u64;
        assert_eq!(passed, 30 - 5 - 2 - cost, "after a cost of {cost}");
        assert_eq!(world.entry(0, &late).unwrap().current.own, 2 + cost + passed);
    }
}

#[test]
fn without_room_for_a_reservation_the_reserve_is_spent_at_once() {
    let mut world = World::alone(1, 33);
    let key = key("a", HOUR);
    let ids: Vec<u64> =
        (0..33).map(|at| world.begins(0, at, deferred_check(&key, 1_000, 10)).unwrap()).collect();
    assert_eq!(world.spent_and_reserved(&key), (10, 320), "32 workers have a reservation");
    world.settle((0, 32), ids[32], 3);
    assert_eq!(world.spent_and_reserved(&key), (10, 320), "a spent reserve is not returned");
    world.settle((0, 31), ids[31], 3);
    assert_eq!(world.spent_and_reserved(&key), (13, 310));
}

#[test]
fn a_denied_request_on_several_cells_holds_no_reserve() {
    let mut world = World::alone(1, 1);
    let (wide, narrow) = (key("wide", HOUR), key("narrow", HOUR));
    let checks = [deferred_check(&wide, 100, 10), Check { rule: 1, ..deferred_check(&narrow, 15, 10) }];
    let (id, outcome) = world.request(0, 0, &checks);
    assert!(allowed(&outcome));
    assert_eq!((world.spent_and_reserved(&wide), world.spent_and_reserved(&narrow)), ((0, 10), (0, 10)));
    let (refused, outcome) = world.request(0, 0, &checks);
    assert_eq!((cause(outcome), world.spent_and_reserved(&wide)), (Cause::Reserved, (0, 10)));
    assert!(!world.limiter(0, 0).is_deferred(refused));
    let now = MonoMs(world.now);
    let Process { shared, workers, .. } = &mut world.processes[0];
    let limiter = &mut workers[0].as_mut().unwrap().limiter;
    limiter.settle_cost(shared, id, |rule, _| Some([3, 4][usize::from(rule)]), now);
    assert_eq!((world.spent_and_reserved(&wide), world.spent_and_reserved(&narrow)), ((3, 0), (4, 0)));
}

#[test]
fn a_cost_that_is_not_known_yet_stays_reserved() {
    let mut world = World::alone(1, 1);
    let (known, unknown) = (key("known", HOUR), key("unknown", HOUR));
    let checks = [deferred_check(&known, 100, 10), Check { rule: 1, ..deferred_check(&unknown, 100, 10) }];
    let (id, _) = world.request(0, 0, &checks);
    let settle = |world: &mut World, costs: [Option<u64>; 2]| {
        let now = MonoMs(world.now);
        let Process { shared, workers, .. } = &mut world.processes[0];
        let limiter = &mut workers[0].as_mut().unwrap().limiter;
        let settled = limiter.settle_cost(shared, id, |rule, _| costs[usize::from(rule)], now);
        let charges = settled.iter().map(|charge| (charge.rules.clone(), charge.reserve, charge.cost));
        (charges.collect::<Vec<_>>(), limiter.is_deferred(id))
    };
    let of = |rule, cost| (RuleSet::of(rule), 10, cost);
    assert_eq!(settle(&mut world, [Some(3), None]), (Vec::from([of(0, 3)]), true));
    assert_eq!((world.spent_and_reserved(&known), world.spent_and_reserved(&unknown)), ((3, 0), (0, 10)));
    assert_eq!(settle(&mut world, [Some(9), None]), (Vec::new(), true));
    world.run(u64::from(WITHIN_MS) + 100);
    assert_eq!(world.spent_and_reserved(&unknown).1, 0, "the reserve counts as spent");
    assert_eq!(settle(&mut world, [None, None]), (Vec::new(), true));
    assert_eq!(settle(&mut world, [None, Some(14)]), (Vec::from([of(1, 14)]), false));
    assert_eq!(world.spent_and_reserved(&unknown), (14, 0), "a late response adds what exceeds it");
    assert_eq!(world.spent_and_reserved(&known), (3, 0));
}

#[test]
fn rules_of_one_cell_charge_the_highest_of_their_costs() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let checks = [check(&key, 100, 5), Check { rule: 1, ..deferred_check(&key, 100, 10) }];
    let (id, _) = world.request(0, 0, &checks);
    assert_eq!(world.spent_and_reserved(&key), (0, 10));
    world.settle((0, 0), id, 2);
    assert_eq!(
        world.spent_and_reserved(&key),
        (5, 0),
        "the cost of the rule without a deferred cost is the minimum"
    );
}

#[test]
fn an_estimate_is_within_the_lowest_limit_of_its_cell() {
    let key = key("a", HOUR);
    let estimates = |rule, limit, cost| {
        let usual = deferred_check(&key, limit, cost);
        Check { rule, policy: Policy { estimates: true, ..usual.policy }, ..usual }
    };
    for checks in [
        [estimates(0, 1_000, 700), estimates(1, 100, 100)],
        [estimates(1, 100, 100), estimates(0, 1_000, 700)],
        [estimates(0, 1_000, 700), check(&key, 100, 3)],
    ] {
        let mut world = World::alone(1, 1);
        assert!(allowed(&world.request(0, 0, &checks).1), "{checks:?}");
        assert_eq!(world.spent_and_reserved(&key), (0, 100));
    }
    let mut world = World::alone(1, 1);
    let fixed = check(&key, 1_000, 101);
    assert_eq!(cause(world.request(0, 0, &[estimates(0, 100, 50), fixed]).1), Cause::Cost);
}

#[test]
fn a_shadow_rule_reserves_and_settles_as_others_do() {
    let mut world = World::alone(1, 1);
    let key = key("a", HOUR);
    let usual = deferred_check(&key, 10, 6);
    let shadow = Check { policy: Policy { shadow: true, ..usual.policy }, ..usual };
    let (id, first) = world.request(0, 0, &[shadow]);
    let (_, second) = world.request(0, 0, &[shadow]);
    assert_eq!((&first.shadow_denied, &second.shadow_denied), (&RuleSet::default(), &RuleSet::of(0)));
    assert!(allowed(&second), "it never denies");
    world.settle((0, 0), id, 2);
    assert_eq!(world.spent_and_reserved(&key), (2, 0));
}

#[test]
fn reserves_of_several_processes_share_the_limit() {
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
    // Without a query a process may reserve only a part of what is left.
    assert!((20..=22).contains(&open.len()), "{} in flight", open.len());
    for (process, id) in open {
        world.settle((process, 0), id, 10);
    }
    world.run(200);
    assert!(
        world.begin(0, 0, deferred_check(&key, limit, reserve)).1.passes(),
        "unspent grants are used first"
    );
}

#[test]
fn reserves_of_a_burst_at_several_processes_share_the_limit() {
    for latency in [(1, 1), (0, 8), (5, 30)] {
        let mut world = World::connected(2, 2);
        world.latency = latency;
        let key = key("a", HOUR);
        let usual = deferred_check(&key, 1_000, 50);
        let waiting_long = Check { policy: Policy { timeout_ms: 500, ..usual.policy }, ..usual };
        let sent: Vec<_> =
            (0..80).map(|turn| world.request(turn % 2, turn / 2 % 2, &[waiting_long])).collect();
        let in_flight =
            sent.into_iter().filter(|(id, outcome)| allowed(&world.wait_for(*id, outcome.clone()).1)).count();
        assert!((18..=24).contains(&in_flight), "{in_flight} in flight, {latency:?}");
    }
}

/// Routes a process' stream to the aggregator again, and waits until it is connected.
fn connect(world: &mut World, process: usize) {
    world.routes.remove(&(process, 0));
    while !world.limiter(process, 0).is_connected() {
        world.run(1);
    }
}

#[test]
fn after_a_restart_a_process_does_not_receive_its_own_use_as_that_of_others() {
    for resolution in [1, HARD_LIMIT_RESOLUTION] {
        let mut world = World::connected(2, 1);
        let usual = key("a", HOUR);
        let key = Key::new(&KeyParts { resolution, ..usual.parts() }).unwrap();
        let first = world.begins(0, 0, deferred_check(&key, 100, 1)).unwrap();
        world.settle((0, 0), first, 40);
        assert!(world.passes(1, 0, &[check(&key, 100, 30)]));
        world.run(500);
        assert_eq!(world.entry(1, &key).unwrap().current.region_others, 40);
        // The other process sends its snapshot before this one has connected again.
        world.routes.insert((0, 0), 9);
        world.restart_region();
        world.run(2_000);
        connect(&mut world, 0);
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
    // Requests in flight at once: the region grants their reserves, and their responses state lower costs.
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
    assert_eq!((world.spent_and_reserved(&key).0, world.regional(&key, at).0), (1_150, 1_150));
}
