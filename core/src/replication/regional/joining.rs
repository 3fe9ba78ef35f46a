//! Takes the region's time from the store before an aggregator serves.
//!
//! The store has the time of one call to be connected. Without it the machine's clock numbers the cells. A store that still loads its data
//! has the counts of the region, which an aggregator that starts lacks. So it waits for such a store as long as for the database, and also
//! for a cluster that is down, as one is while a server of it loads its data.

use crate::model::schedule::Schedule;
use crate::model::time::MonoMs;
use crate::replication::Next;
use crate::replication::failure::Failure;

/// Time between two calls.
const PAUSE_MS: u64 = 50;

/// Propose the aggregator's time to the store, and name no nodes; then call [`Joining::answered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The deadline in milliseconds.
    pub within_ms: u64,
}

/// Ends before the aggregator serves.
#[derive(Debug)]
pub struct Joining {
    schedule: Schedule,
    began: MonoMs,
    /// When it gives up, unless the store still loads its data then.
    until: MonoMs,
    stage: Stage,
    is_loading: bool,
    has_joined: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Calling,
    Pausing,
    Over,
}

impl Joining {
    /// Begins now.
    pub fn new(schedule: Schedule, now: MonoMs) -> Joining {
        let until = now.after(schedule.replay_timeout_ms);
        Joining { schedule, began: now, until, stage: Stage::Calling, is_loading: false, has_joined: false }
    }

    /// What to do now.
    pub fn next(&mut self, now: MonoMs) -> Next<Join> {
        match self.stage {
            Stage::Calling => {
                self.stage = Stage::Pausing;
                Next::Call(Join { within_ms: self.until.since(now).max(1) })
            }
            Stage::Pausing => {
                self.stage = Stage::Calling;
                Next::Sleep(PAUSE_MS)
            }
            Stage::Over => Next::Over,
        }
    }

    /// Takes the result of a call. If it is the region's time, the driver has followed it.
    pub fn answered(&mut self, result: Result<(), Failure>, now: MonoMs) {
        self.has_joined = result.is_ok();
        self.is_loading = result == Err(Failure::Loading);
        if self.is_loading {
            let most = self.began.after(self.schedule.restore_ms);
            self.until = now.after(self.schedule.replay_timeout_ms).min(most);
        }
        if self.has_joined || now >= self.until {
            self.stage = Stage::Over;
        }
    }

    /// Whether the store loads its data, by its last answer.
    pub fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Whether the aggregator has the region's time.
    pub fn has_joined(&self) -> bool {
        self.has_joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls until it ends; returns how often, and after which time.
    fn run(answers: impl Fn(u64) -> Result<(), Failure>) -> (u64, u64, bool) {
        let mut joining = Joining::new(Schedule::default(), MonoMs(5_000));
        let (mut ms, mut calls) = (0, 0);
        loop {
            match joining.next(MonoMs(5_000 + ms)) {
                Next::Call(Join { within_ms }) => {
                    assert!((1..=Schedule::default().replay_timeout_ms).contains(&within_ms));
                    calls += 1;
                    ms += 1;
                    joining.answered(answers(ms), MonoMs(5_000 + ms));
                }
                Next::Sleep(pause) => ms += pause,
                Next::Over => return (calls, ms, joining.has_joined()),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn it_waits_for_a_store_that_is_away_for_one_call_and_for_one_that_loads_until_the_bound() {
        let Schedule { replay_timeout_ms, restore_ms, .. } = Schedule::default();
        assert_eq!(run(|_| Ok(())), (1, 1, true));
        let found = run(|ms| if ms < 500 { Err(Failure::Unavailable) } else { Ok(()) });
        assert!((500..600).contains(&found.1) && found.2, "{found:?}");
        let (_, ms, has_joined) = run(|_| Err(Failure::Unavailable));
        assert!((replay_timeout_ms..replay_timeout_ms + 100).contains(&ms) && !has_joined, "{ms}");
        let loaded = run(|ms| if ms < restore_ms / 2 { Err(Failure::Loading) } else { Ok(()) });
        assert!((restore_ms / 2..restore_ms / 2 + 100).contains(&loaded.1) && loaded.2, "{loaded:?}");
        let (_, ms, has_joined) = run(|_| Err(Failure::Loading));
        assert!((restore_ms..restore_ms + 100).contains(&ms) && !has_joined, "{ms}");
        // One that ends while it loads is away.
        let (_, ms, _) = run(|ms| Err(if ms < 9_000 { Failure::Loading } else { Failure::Unavailable }));
        assert!((9_000 + replay_timeout_ms - 100..9_100 + replay_timeout_ms).contains(&ms), "{ms}");
    }
}
