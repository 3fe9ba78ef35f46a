//! The requests of each shape: an endless sequence of times and identifiers.

use super::Zipf;
use crate::plan::START_UNIX_MS;
use crate::plan::traffic::{Arrival, Shape};
use crate::random::Random;

/// A future request: its time and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Microseconds since the traffic began.
    pub at_us: u64,
    pub identifier: u64,
    pub place: Where,
}

/// The place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// A random place.
    Anywhere,
    /// Places in turn: the one with this number, modulo their count.
    Turn(u64),
    /// The place, cost and rules of a recorded arrival.
    Recorded(Arrival),
}

/// The burst of [`Shape::WindowEnd`] takes the last hundredth of a window.
const BURST_PART: u64 = 100;
/// Longest duration of that burst, in microseconds.
const BURST_US_MAX: u64 = 10_000;

/// The requests of `shape` from `from_us` on, in order of time, with this number of regions.
pub(super) fn moments(
    shape: &Shape,
    regions: u64,
    from_us: u64,
    random: Random,
) -> Box<dyn Iterator<Item = Moment> + '_> {
    match *shape {
        Shape::Steady { identifier, rate } => {
            Box::new(independent(rate, from_us, random, move |_, _| identifier))
        }
        Shape::Spread { identifiers, rate } => {
            Box::new(independent(rate, from_us, random, move |_, random| random.below(identifiers)))
        }
        Shape::Zipf { identifiers, exponent, rate } => {
            let law = Zipf::new(identifiers, exponent);
            Box::new(independent(rate, from_us, random, move |_, random| law.draw(random) - 1))
        }
        Shape::Fresh { from, rate } => Box::new(fresh(from, rate, from_us, random)),
        Shape::Bursts { identifier, requests, every_ms, over_ms } => {
            Box::new(bursts(identifier, requests, us(every_ms.max(1)), us(over_ms), from_us))
        }
        Shape::WindowEnd { identifier, limit, window_ms, rate } => {
            Box::new(window_end(identifier, limit, us(window_ms.max(1)), rate, from_us, random))
        }
        Shape::UnderFloor { identifier, requests, window_ms } => {
            let requests = requests.saturating_mul(regions);
            Box::new(under_lower_bound(identifier, requests, us(window_ms.max(1)), from_us))
        }
        Shape::Trace { ref arrivals } => Box::new(recorded(arrivals, from_us)),
    }
}

/// Independent requests with consecutive identifiers.
pub(super) fn fresh(first: u64, rate: f64, from_us: u64, random: Random) -> impl Iterator<Item = Moment> {
    independent(rate, from_us, random, move |number, _| first.wrapping_add(number))
}

/// Independent requests; `identifier_of` maps the number of each to its identifier. Without a positive rate there are
/// none.
fn independent(
    rate: f64,
    from_us: u64,
    mut random: Random,
    mut identifier_of: impl FnMut(u64, &mut Random) -> u64,
) -> impl Iterator<Item = Moment> {
    let has_requests = rate.is_finite() && rate > 0.0;
    let mut at = from_us as f64;
    (0..if has_requests { u64::MAX } else { 0 }).map(move |number| {
        at += random.exponential(1e6 / rate);
        Moment { at_us: at as u64, identifier: identifier_of(number, &mut random), place: Where::Anywhere }
    })
}

fn bursts(
    identifier: u64,
    requests: u64,
    every_us: u64,
    over_us: u64,
    from_us: u64,
) -> impl Iterator<Item = Moment> {
    let step = every_us.max(over_us);
    (0..if requests > 0 { u64::MAX } else { 0 }).map(move |number| {
        let (burst, place) = (number / requests, number % requests);
        let at_us = from_us
            .saturating_add(burst.saturating_mul(step))
            .saturating_add(over_us.saturating_mul(place) / requests);
        Moment { at_us, identifier, place: Where::Anywhere }
    })
}

fn window_end(
    identifier: u64,
    limit: u64,
    window_us: u64,
    rate: f64,
    from_us: u64,
    random: Random,
) -> impl Iterator<Item = Moment> {
    let first = next_window_us(window_us, from_us);
    (0..)
        .map(move |cycle: u64| first.saturating_add(cycle.saturating_mul(window_us.saturating_mul(3))))
        .flat_map(move |begins| {
            let over = (window_us / BURST_PART).clamp(1, BURST_US_MAX);
            let end = begins.saturating_add(window_us.saturating_mul(2));
            let burst = (0..limit).map(move |number| Moment {
                at_us: end.saturating_sub(over).saturating_add(over.saturating_mul(number) / limit.max(1)),
                identifier,
                place: Where::Anywhere,
            });
            let then = independent(rate, end, random.fork("cycle", begins), move |_, _| identifier);
            burst.chain(then.take_while(move |moment| moment.at_us < end.saturating_add(window_us)))
        })
}

fn under_lower_bound(
    identifier: u64,
    requests: u64,
    window_us: u64,
    from_us: u64,
) -> impl Iterator<Item = Moment> {
    let first = next_window_us(window_us, from_us);
    (0..if requests > 0 { u64::MAX } else { 0 }).map(move |number| {
        let (window, place) = (number / requests, number % requests);
        let into = (window_us / 2).saturating_mul(place) / requests;
        let at_us = first.saturating_add(window.saturating_mul(window_us)).saturating_add(into);
        Moment { at_us, identifier, place: Where::Turn(number) }
    })
}

fn recorded(arrivals: &[Arrival], from_us: u64) -> impl Iterator<Item = Moment> + '_ {
    let mut in_order: Vec<&Arrival> = arrivals.iter().collect();
    in_order.sort_by_key(|arrival| arrival.at_us);
    in_order.into_iter().map(move |arrival| Moment {
        at_us: from_us.saturating_add(arrival.at_us),
        identifier: arrival.identifier,
        place: Where::Recorded(*arrival),
    })
}

/// The beginning of the first window at or after `from_us`. Windows begin at multiples of their length in Unix time.
fn next_window_us(window_us: u64, from_us: u64) -> u64 {
    let unix = (START_UNIX_MS * 1_000).saturating_add(from_us);
    unix.checked_next_multiple_of(window_us).map_or(u64::MAX, |next| from_us.saturating_add(next - unix))
}

fn us(ms: u64) -> u64 {
    ms.saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(shape: &Shape, from_us: u64, count: usize) -> Vec<u64> {
        moments(shape, 1, from_us, Random::new(5)).take(count).map(|moment| moment.at_us).collect()
    }

    #[test]
    fn bursts_are_even_and_repeat() {
        let shape = Shape::Bursts { identifier: 1, requests: 2, every_ms: 10, over_ms: 4 };
        assert_eq!(times(&shape, 500, 5), [500, 2_500, 10_500, 12_500, 20_500]);
    }

    #[test]
    fn the_burst_is_at_a_windows_end_and_saturation_fills_the_next() {
        let shape = Shape::WindowEnd { identifier: 1, limit: 4, window_ms: 1_000, rate: 100.0 };
        let all: Vec<u64> = times(&shape, 0, 600).into_iter().filter(|at| *at < 6_000_000).collect();
        assert_eq!(all[..4], [1_990_000, 1_992_500, 1_995_000, 1_997_500]);
        let saturation = all[4..].iter().take_while(|at| **at < 3_000_000).count();
        assert!((60..140).contains(&saturation), "{saturation}");
        assert_eq!(all[4 + saturation], 4_990_000, "then two windows without requests");
        // 300 s do not divide the beginning of the traffic: the next window begins 60 s later.
        let long = Shape::WindowEnd { identifier: 1, limit: 1, window_ms: 300_000, rate: 1.0 };
        assert_eq!(times(&long, 0, 1), [60_000_000 + 600_000_000 - 10_000]);
    }

    #[test]
    fn extreme_numbers_do_not_panic() {
        let most = u64::MAX;
        for shape in [
            Shape::Bursts { identifier: 1, requests: most, every_ms: most, over_ms: most },
            Shape::WindowEnd { identifier: 1, limit: most, window_ms: most, rate: 1.0 },
            Shape::UnderFloor { identifier: 1, requests: most, window_ms: most },
            Shape::Zipf { identifiers: most, exponent: f64::MAX, rate: f64::MAX },
            Shape::Spread { identifiers: most, rate: 1e-300 },
        ] {
            for from_us in [0, most] {
                assert!(times(&shape, from_us, 3).is_sorted(), "{shape:?}");
            }
        }
    }

    #[test]
    fn under_the_lower_bound_fills_first_halves_in_turn() {
        let shape = Shape::UnderFloor { identifier: 1, requests: 4, window_ms: 1_000 };
        assert_eq!(times(&shape, 1, 6), [1_000_000, 1_125_000, 1_250_000, 1_375_000, 2_000_000, 2_125_000]);
    }

    #[test]
    fn independent_arrivals_have_their_rate_and_an_invalid_rate_has_none() {
        let shape = Shape::Spread { identifiers: 3, rate: 1_000.0 };
        let all: Vec<Moment> =
            moments(&shape, 1, 0, Random::new(5)).take_while(|moment| moment.at_us < 10_000_000).collect();
        assert!((9_500..10_500).contains(&all.len()), "{}", all.len());
        for identifier in 0..3 {
            let share = all.iter().filter(|moment| moment.identifier == identifier).count();
            assert!((3_000..3_700).contains(&share), "{share}");
        }
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(times(&Shape::Steady { identifier: 1, rate }, 0, 1), [0u64; 0]);
        }
        let fresh = Shape::Fresh { from: 7, rate: 10.0 };
        let identifiers: Vec<u64> =
            moments(&fresh, 1, 0, Random::new(5)).take(3).map(|moment| moment.identifier).collect();
        assert_eq!(identifiers, [7, 8, 9]);
    }
}
