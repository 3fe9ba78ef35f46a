//! Turns at something scarce that parts share, such as the zones of a ledger its connections.
//!
//! A part has at most [three times as many turns as are free](weir_core::model::room), and as many of the places to wait. Those that wait
//! are served part by part. So calls of one part that are slow or many leave turns to the others.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use weir_core::model::room::Places;

/// The turns, and the calls that wait for one.
pub(super) struct Turns<P: Copy + Ord>(Mutex<State<P>>);

struct State<P: Copy + Ord> {
    taken: Places<P>,
    waiting: Places<P>,
    /// The calls of each part that wait, by number.
    queues: BTreeMap<P, BTreeMap<u64, oneshot::Sender<Turn<P>>>>,
    /// The parts with a queue, in the order in which they are served.
    order: VecDeque<P>,
    last: u64,
}

/// A turn, which ends when it is dropped.
pub(super) struct Turn<P: Copy + Ord> {
    turns: Arc<Turns<P>>,
    part: P,
}

/// A call that waits, until it is dropped.
struct Waiting<'a, P: Copy + Ord> {
    turns: &'a Turns<P>,
    part: P,
    number: u64,
}

impl<P: Copy + Ord> Turns<P> {
    /// So many turns at the same time; at most `most_waiting` calls wait for one.
    pub(super) fn new(most: usize, most_waiting: usize) -> Arc<Turns<P>> {
        Arc::new(Turns(Mutex::new(State {
            taken: Places::new(most),
            waiting: Places::new(most_waiting),
            queues: BTreeMap::new(),
            order: VecDeque::new(),
            last: 0,
        })))
    }

    /// Waits for a turn of a part. `None` if there was none by `deadline`, or too many calls of the part wait.
    pub(super) async fn take(self: &Arc<Self>, part: P, deadline: Instant) -> Option<Turn<P>> {
        let (granted, waiting) = {
            let mut state = self.0.lock();
            if !state.queues.contains_key(&part) && state.taken.take(part) {
                return Some(Turn { turns: self.clone(), part });
            }
            if !state.waiting.take(part) {
                return None;
            }
            let (grant, granted) = oneshot::channel();
            let number = state.enqueue(part, grant);
            (granted, Waiting { turns: self, part, number })
        };
        let turn = timeout_at(deadline, granted).await.ok().and_then(Result::ok);
        drop(waiting);
        turn
    }

    /// Gives the turns that are free to calls that wait.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some((part, grant)) = self.0.lock().next() else { return };
            // A call that is just ending does not take it. Then it ends here, outside of the lock, and is given to the next.
            drop(grant.send(Turn { turns: self.clone(), part }));
        }
    }
}

impl<P: Copy + Ord> State<P> {
    fn enqueue(&mut self, part: P, grant: oneshot::Sender<Turn<P>>) -> u64 {
        self.last += 1;
        if !self.queues.contains_key(&part) {
            self.order.push_back(part);
        }
        self.queues.entry(part).or_default().insert(self.last, grant);
        self.last
    }

    /// Takes a turn for the first call of the first part that may have one.
    fn next(&mut self) -> Option<(P, oneshot::Sender<Turn<P>>)> {
        let at = self.order.iter().position(|part| self.taken.has_place(part))?;
        let part = self.order.remove(at)?;
        let queue = self.queues.get_mut(&part)?;
        let (_, grant) = queue.pop_first()?;
        match queue.is_empty() {
            true => drop(self.queues.remove(&part)),
            false => self.order.push_back(part),
        }
        self.waiting.leave(&part);
        self.taken.take(part);
        Some((part, grant))
    }

    /// A call no longer waits.
    fn forget(&mut self, part: P, number: u64) {
        let Some(queue) = self.queues.get_mut(&part) else { return };
        if queue.remove(&number).is_none() {
            return;
        }
        if queue.is_empty() {
            self.queues.remove(&part);
            self.order.retain(|other| *other != part);
        }
        self.waiting.leave(&part);
    }
}

impl<P: Copy + Ord> Drop for Turn<P> {
    fn drop(&mut self) {
        self.turns.0.lock().taken.leave(&self.part);
        self.turns.serve();
    }
}

impl<P: Copy + Ord> Drop for Waiting<'_, P> {
    fn drop(&mut self) {
        self.turns.0.lock().forget(self.part, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::time::Duration;
    use tokio::task::yield_now;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Takes all turns that a part may have now.
    async fn fill(turns: &Arc<Turns<u32>>, part: u32) -> Vec<Turn<u32>> {
        let mut taken = Vec::new();
        while let Some(turn) = turns.take(part, Instant::now()).await {
            taken.push(turn);
        }
        taken
    }

    #[tokio::test]
    async fn parts_that_take_all_they_may_leave_turns_to_others() {
        let turns = Turns::new(16, 64);
        let (one, two) = (fill(&turns, 1).await, fill(&turns, 2).await);
        assert_eq!((one.len(), two.len()), (12, 3));
        assert!(turns.take(3, Instant::now()).await.is_some());
        drop((one, two));
        assert_eq!(fill(&turns, 1).await.len(), 12);
    }

    /// Lets `calls` of a part wait, each of which reports the part when it has its turn.
    async fn wait(turns: &Arc<Turns<u32>>, part: u32, calls: usize, served: &Arc<Mutex<Vec<u32>>>) {
        for _ in 0..calls {
            let (turns, served) = (turns.clone(), served.clone());
            tokio::spawn(async move {
                let _turn = turns.take(part, soon()).await.unwrap();
                served.lock().push(part);
            });
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn those_that_wait_are_served_part_by_part() {
        let (turns, served) = (Turns::new(1, 64), Arc::<Mutex<Vec<u32>>>::default());
        let held = turns.take(1, soon()).await.unwrap();
        wait(&turns, 1, 5, &served).await;
        wait(&turns, 2, 2, &served).await;
        drop(held);
        while served.lock().len() < 7 {
            yield_now().await;
        }
        assert_eq!(*served.lock(), [1, 2, 1, 2, 1, 1, 1]);
        let state = turns.0.lock();
        assert_eq!((state.taken.taken(), state.waiting.taken()), (0, 0));
        assert!(state.queues.is_empty() && state.order.is_empty());
    }

    #[tokio::test]
    async fn places_to_wait_are_shared_and_left_by_those_that_give_up() {
        let (turns, served) = (Turns::new(1, 8), Arc::default());
        let held = turns.take(1, soon()).await.unwrap();
        wait(&turns, 1, 6, &served).await;
        assert!(turns.take(1, soon()).await.is_none(), "it has three quarters of the places to wait");
        let mut other = Box::pin(turns.take(2, soon()));
        assert!((&mut other).now_or_never().is_none(), "another finds one");
        drop(other);
        assert!(turns.take(2, Instant::now()).await.is_none(), "it has waited in vain");
        assert_eq!(turns.0.lock().waiting.taken(), 6);
        // A turn that was given to a call which ends before it looks is given to the next.
        let mut gone = Box::pin(turns.take(3, soon()));
        assert!((&mut gone).now_or_never().is_none());
        drop(held);
        while served.lock().is_empty() {
            yield_now().await;
        }
        drop(gone);
        while served.lock().len() < 6 {
            yield_now().await;
        }
        assert_eq!(turns.0.lock().taken.taken(), 0);
    }
}
