//! Runs jobs on all cores and returns their results in the jobs' order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weir_simulator::measure::observe::NoObserver;
use weir_simulator::plan::Plan;
use weir_simulator::report::Row;
use weir_simulator::run::{Expected, run};

/// One run to make.
pub struct Job {
    /// The scenario's name, or the path of the plan's file.
    pub name: String,
    pub plan: Plan,
    pub expected: Expected,
}

impl Job {
    pub fn run(&self) -> Row {
        let outcome = run(&self.plan, &self.expected, &mut NoObserver);
        Row { scenario: self.name.clone(), seed: self.plan.seed, outcome }
    }
}

/// Applies `work` to each of `items`, on as many threads as there are cores; the results are in the items' order.
pub fn in_order<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(item), Some(slot)) = (items.get(place), done.get(place)) else { return };
                    let result = work(item);
                    if let Ok(mut slot) = slot.lock() {
                        *slot = Some(result);
                    }
                }
            });
        }
    });
    done.into_iter().filter_map(|slot| slot.into_inner().ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..500).collect();
        // The first items need the most time.
        let work = |item: &u64| (0..(500 - item) * 100).fold(*item, |sum, one| sum ^ one ^ one);
        assert_eq!(in_order(&items, work), items);
        assert_eq!(in_order(&[], |item: &u64| *item), Vec::<u64>::new());
    }
}
