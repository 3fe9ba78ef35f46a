//! Limits the rate of log lines that a peer can provoke: one line passes in each interval, the others are counted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Lets one line pass in each interval.
#[derive(Debug)]
pub struct Throttle {
    created: Instant,
    interval_ms: u64,
    open_at_ms: AtomicU64,
    held_back: AtomicU64,
}

impl Throttle {
    /// The first line passes at once.
    pub fn new(interval: Duration) -> Throttle {
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        Throttle {
            created: Instant::now(),
            interval_ms,
            open_at_ms: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// If this line may pass, the number of lines held back since the last one that passed.
    pub fn pass(&self) -> Option<u64> {
        let now_ms = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        let open_at_ms = self.open_at_ms.load(Relaxed);
        let next_ms = now_ms.saturating_add(self.interval_ms);
        let passes = now_ms >= open_at_ms
            && self.open_at_ms.compare_exchange(open_at_ms, next_ms, Relaxed, Relaxed).is_ok();
        if passes {
            return Some(self.held_back.swap(0, Relaxed));
        }
        self.held_back.fetch_add(1, Relaxed);
        None
    }
}

/// A throttle for each place of the program that logs, so that the lines of one hide no others.
#[derive(Debug)]
pub struct Throttles {
    interval: Duration,
    of: Mutex<HashMap<&'static Location<'static>, Throttle>>,
}

impl Throttles {
    /// The first line of each place passes at once.
    pub fn new(interval: Duration) -> Throttles {
        Throttles { interval, of: Mutex::default() }
    }

    /// If a line of the caller's place may pass, the number of its lines held back since the last one that passed.
    #[track_caller]
    pub fn pass(&self) -> Option<u64> {
        self.of.lock().entry(Location::caller()).or_insert_with(|| Throttle::new(self.interval)).pass()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_passes_and_the_rest_are_counted() {
        let throttle = Throttle::new(Duration::from_secs(3_600));
        assert_eq!(throttle.pass(), Some(0));
        assert_eq!((throttle.pass(), throttle.pass()), (None, None));
        throttle.open_at_ms.store(0, Relaxed);
        assert_eq!(throttle.pass(), Some(2));
    }

    #[test]
    fn lines_of_one_place_hide_no_others() {
        let throttles = Throttles::new(Duration::from_secs(3_600));
        let passed: Vec<_> = (0..3).map(|_| throttles.pass()).collect();
        assert_eq!(passed, [Some(0), None, None]);
        assert_eq!(throttles.pass(), Some(0));
    }
}
