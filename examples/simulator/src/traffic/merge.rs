//! Merges all sources of a plan in order of time, lazily. The floods among the faults are sources too.

use super::shapes::{Moment, Where, fresh, moments};
use crate::plan::traffic::{Arrival, Traffic};
use crate::plan::{Fault, Part, Plan, Topology, Wrong};
use crate::random::Random;
use std::collections::BTreeSet;
use std::iter::Peekable;

/// The identifiers of floods begin here; those of the n-th fault begin at n times this.
const FLOOD: u64 = 1 << 48;

/// All arrivals of `plan`, in order of time. They are produced lazily, so a day of them takes no memory.
pub fn arrivals(plan: &Plan) -> Arrivals<'_> {
    let chance = Random::new(plan.seed).fork("traffic", 0);
    let own = (0..).zip(&plan.traffic).map(|(number, traffic)| {
        let chance = chance.fork("source", number);
        Source::of(traffic, plan, &chance)
    });
    let floods = (1..).zip(&plan.faults).filter_map(|(number, fault)| {
        let chance = chance.fork("flood", number);
        Source::of_flood(number, fault, plan, &chance)
    });
    Arrivals { sources: own.chain(floods).map(Iterator::peekable).collect() }
}

/// Arrivals in order of time.
pub struct Arrivals<'a> {
    sources: Vec<Peekable<Source<'a>>>,
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let times = self.sources.iter_mut().map(|source| source.peek().map(|arrival| arrival.at_us));
        let (_, first) = times.enumerate().filter_map(|(place, at)| Some((at?, place))).min()?;
        self.sources.get_mut(first)?.next()
    }
}

/// One source: its requests, with their places and costs.
struct Source<'a> {
    moments: Box<dyn Iterator<Item = Moment> + 'a>,
    until_us: u64,
    places: Vec<(u16, u16)>,
    topology: Topology,
    cost: (u64, u64),
    rules: u64,
    chance: Random,
}

impl<'a> Source<'a> {
    fn of(traffic: &'a Traffic, plan: &Plan, chance: &Random) -> Source<'a> {
        let places = places(&plan.topology, &traffic.at);
        let regions: BTreeSet<u16> = places.iter().map(|(region, _)| *region).collect();
        let from_us = traffic.from_ms.saturating_mul(1_000);
        let until_ms = traffic.until_ms.unwrap_or(u64::MAX).min(plan.traffic_ms);
        Source {
            moments: moments(&traffic.shape, regions.len() as u64, from_us, chance.fork("times", 0)),
            until_us: until_ms.saturating_mul(1_000),
            places,
            topology: plan.topology,
            cost: traffic.cost,
            rules: traffic.rules,
            chance: chance.fork("places", 0),
        }
    }

    fn of_flood(number: u64, fault: &Fault, plan: &Plan, chance: &Random) -> Option<Source<'a>> {
        let Wrong::Flood { part: Part::Envoy { region, envoy }, identifiers } = fault.what else {
            return None;
        };
        let at = (u16::try_from(region).ok()?, u16::try_from(envoy).ok()?);
        let (from_us, first) = (fault.at_ms.saturating_mul(1_000), number.wrapping_mul(FLOOD));
        let until_ms = fault.at_ms.saturating_add(fault.for_ms).min(plan.traffic_ms);
        Some(Source {
            moments: Box::new(fresh(first, identifiers as f64, from_us, chance.fork("times", 0))),
            until_us: until_ms.saturating_mul(1_000),
            places: places(&plan.topology, &[at]),
            topology: plan.topology,
            cost: (1, 1),
            rules: 1,
            chance: chance.fork("places", 0),
        })
    }

    fn arrival(&mut self, moment: Moment) -> Option<Arrival> {
        let (region, envoy) = match moment.place {
            Where::Recorded(arrival) => {
                return has(&self.topology, &arrival).then_some(Arrival { at_us: moment.at_us, ..arrival });
            }
            Where::Turn(number) => *in_turn(&self.places, number)?,
            Where::Anywhere => *in_turn(&self.places, self.chance.below(self.places.len() as u64))?,
        };
        let worker = u16::try_from(self.chance.below(self.topology.workers as u64)).unwrap_or(0);
        let (least, most) = self.cost;
        let cost = least.saturating_add(self.chance.below(most.saturating_sub(least).saturating_add(1)));
        Some(Arrival {
            at_us: moment.at_us,
            region,
            envoy,
            worker,
            identifier: moment.identifier,
            cost,
            rules: self.rules,
        })
    }
}

impl Iterator for Source<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.places.is_empty() {
            return None;
        }
        loop {
            let moment = self.moments.next().filter(|moment| moment.at_us < self.until_us)?;
            if let Some(arrival) = self.arrival(moment) {
                return Some(arrival);
            }
        }
    }
}

/// The Envoys that receive requests. Regions alternate, so that consecutive requests are spread over them evenly.
fn places(topology: &Topology, at: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let number = |count: usize| 0..u16::try_from(count).unwrap_or(u16::MAX);
    let all =
        number(topology.envoys).flat_map(|envoy| number(topology.regions).map(move |region| (region, envoy)));
    all.filter(|place| at.is_empty() || at.contains(place)).collect()
}

fn in_turn(places: &[(u16, u16)], number: u64) -> Option<&(u16, u16)> {
    let place = number.checked_rem(places.len() as u64)?;
    places.get(usize::try_from(place).ok()?)
}

fn has(topology: &Topology, arrival: &Arrival) -> bool {
    usize::from(arrival.region) < topology.regions
        && usize::from(arrival.envoy) < topology.envoys
        && usize::from(arrival.worker) < topology.workers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::traffic::Shape;

    fn plan(traffic: Vec<Traffic>, faults: Vec<Fault>) -> Plan {
        Plan {
            seed: 1,
            topology: Topology { regions: 2, ..Topology::region(3) },
            rules: Vec::new(),
            traffic,
            faults,
            network: Default::default(),
            schedule: Default::default(),
            settle_ms: 0,
            traffic_ms: 10_000,
            calls: None,
            quiet_ms: 0,
        }
    }

    fn source(shape: Shape) -> Traffic {
        Traffic { from_ms: 0, until_ms: None, rules: 1, cost: (1, 1), at: Vec::new(), shape }
    }

    #[test]
    fn sources_are_merged_in_order_and_end_with_the_traffic() {
        let steady = Traffic {
            from_ms: 2_000,
            until_ms: Some(5_000),
            ..source(Shape::Steady { identifier: 1, rate: 500.0 })
        };
        let spread =
            Traffic { cost: (2, 4), rules: 6, ..source(Shape::Spread { identifiers: 10, rate: 500.0 }) };
        let part = Part::Envoy { region: 1, envoy: 2 };
        let flood = Fault { at_ms: 9_000, for_ms: 9_000, what: Wrong::Flood { part, identifiers: 100 } };
        let plan = plan(vec![steady, spread], vec![flood]);
        let all: Vec<Arrival> = arrivals(&plan).collect();
        assert_eq!(all, arrivals(&plan).collect::<Vec<_>>(), "the seed decides");
        assert!(all.is_sorted_by_key(|arrival| arrival.at_us));
        assert!(all.last().is_some_and(|last| last.at_us < 10_000_000));
        let (floods, others): (Vec<Arrival>, Vec<Arrival>) =
            all.iter().partition(|one| one.identifier >= FLOOD);
        assert!((70..130).contains(&floods.len()), "{}", floods.len());
        assert!(floods.iter().all(|one| (one.region, one.envoy) == (1, 2) && one.at_us >= 9_000_000));
        let (steady, spread): (Vec<Arrival>, Vec<Arrival>) = others.iter().partition(|one| one.rules == 1);
        assert!((1_350..1_650).contains(&steady.len()), "{}", steady.len());
        assert!(steady.iter().all(|one| (2_000_000..5_000_000).contains(&one.at_us) && one.cost == 1));
        for cost in 2..=4 {
            assert!(spread.iter().filter(|one| one.cost == cost).count() > 1_500);
        }
        for worker in 0..2 {
            let share = spread.iter().filter(|one| one.worker == worker && one.region == 1 && one.envoy == 2);
            assert!((300..550).contains(&share.count()));
        }
        let other = Plan { seed: 2, ..plan.clone() };
        assert_ne!(all, arrivals(&other).collect::<Vec<_>>());
    }

    #[test]
    fn an_additional_source_does_not_change_the_others() {
        let first = source(Shape::Spread { identifiers: 10, rate: 50.0 });
        let alone = plan(vec![first.clone()], Vec::new());
        let two = plan(
            vec![first, Traffic { rules: 2, ..source(Shape::Steady { identifier: 3, rate: 9.0 }) }],
            Vec::new(),
        );
        let of_first: Vec<Arrival> = arrivals(&two).filter(|one| one.rules == 1).collect();
        assert_eq!(arrivals(&alone).collect::<Vec<_>>(), of_first);
    }

    #[test]
    fn under_the_lower_bound_is_spread_evenly() {
        let shape = Shape::UnderFloor { identifier: 1, requests: 6, window_ms: 5_000 };
        let plan = plan(vec![source(shape)], Vec::new());
        for (region, envoy) in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)] {
            let there = arrivals(&plan).filter(|one| (one.region, one.envoy) == (region, envoy));
            assert_eq!(there.map(|one| one.at_us / 5_000_000).collect::<Vec<_>>(), [0, 0, 1, 1]);
        }
    }

    #[test]
    fn a_trace_keeps_its_places_and_skips_places_outside_the_topology() {
        let here = Arrival { at_us: 7, region: 1, envoy: 2, worker: 1, identifier: 9, cost: 5, rules: 2 };
        let recorded = vec![here, Arrival { region: 2, ..here }, Arrival { at_us: 3, ..here }];
        let traffic = Traffic { from_ms: 1, ..source(Shape::Trace { arrivals: recorded }) };
        let nowhere = Traffic { at: vec![(5, 5)], ..source(Shape::Steady { identifier: 1, rate: 9.0 }) };
        let plan = plan(vec![traffic, nowhere], Vec::new());
        let all: Vec<Arrival> = arrivals(&plan).collect();
        assert_eq!(all, [Arrival { at_us: 1_003, ..here }, Arrival { at_us: 1_007, ..here }]);
    }
}
