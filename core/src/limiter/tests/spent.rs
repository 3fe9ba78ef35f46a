//! Use that was decided elsewhere: it is charged beyond any limit, and others see it.

use super::harness::*;
use crate::limiter::Cause;
use crate::model::time::MonoMs;
use crate::model::window::MAX_COUNT;

#[test]
fn spent_use_is_charged_beyond_the_limit_and_reported() {
    let mut world = World::connected(2, 1);
    let key = key("a", HOUR);
    assert!(world.passes(0, 0, &[check(&key, 10, 4)]));
    let spend = |world: &mut World, amount, expected| {
        let now = MonoMs(world.now);
        let Process { shared, workers, .. } = &mut world.processes[0];
        let limiter = &mut workers[0].as_mut().unwrap().limiter;
        assert!(limiter.charge_spent(shared, &check(&key, 10, amount), now));
        assert_eq!(world.spent_and_reserved(&key), (expected, 0));
    };
    spend(&mut world, 3, 7);
    spend(&mut world, 50, 57);
    spend(&mut world, 0, 57);
    assert_eq!(denial(world.decide(0, 0, &[check(&key, 10, 1)])).cause, Cause::Limit);
    world.run(500);
    assert_eq!(denial(world.decide(1, 0, &[check(&key, 10, 1)])).cause, Cause::Limit, "the other process");
    spend(&mut world, u64::MAX, MAX_COUNT);
}
