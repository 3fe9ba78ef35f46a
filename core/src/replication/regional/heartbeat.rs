//! Which Envoys are alive: said of one's own, and heard of those elsewhere in the region.
//!
//! Leaves to others: who counts as alive (`region`, and the store by its own clock), what their number means.

use crate::model::key::OriginId;
use crate::model::schedule::Schedule;
use crate::model::wire::Changes;
use crate::replication::events::{Event, Events};
use crate::replication::failure::Failure;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;

/// What the store is asked to do. It has [`Schedule::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Note that these are alive, and say who else is; then [`Heartbeat::heard`].
    Origins(Vec<OriginId>),
    /// Publish this; then [`Heartbeat::sent`].
    Broadcast(Changes),
}

/// Announces for as long as the aggregator runs.
#[derive(Debug)]
pub struct Heartbeat {
    id: [u8; 16],
    schedule: Schedule,
    /// The Envoys here changed.
    changed: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Woken,
    Named,
}

impl Heartbeat {
    /// For the aggregator that is called `id`.
    pub fn new(id: [u8; 16], schedule: Schedule) -> Heartbeat {
        Heartbeat { id, schedule, changed: false, stage: Stage::Waiting }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Call> {
        match core::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Woken => {
                let mine = access.state(|state, now| {
                    let usable = state.is_usable(now.mono);
                    usable.then(|| state.region.origins_here(now.mono).collect())
                });
                if let Some(mine) = mine {
                    self.stage = Stage::Named;
                    return Next::Call(Call::Origins(mine));
                }
            }
            Stage::Named if self.changed => {
                let sender = self.id.to_vec();
                self.changed = false;
                let changes = Changes { sender, origins_changed: true, ..Changes::default() };
                return Next::Call(Call::Broadcast(changes));
            }
            Stage::Named | Stage::Waiting => {}
        }
        (self.stage, self.changed) = (Stage::Woken, false);
        let events = Events::from(Event::Heartbeat).and(Event::Elsewhere);
        Next::Wait { events, at_most_ms: Some(self.schedule.heartbeat_ms) }
    }

    /// A event notified.
    pub fn notified(&mut self, event: Event) {
        self.changed = event == Event::Heartbeat;
    }

    /// Takes who is alive in the region.
    pub fn heard(&mut self, access: &mut impl Access, alive: Result<&[OriginId], Failure>) {
        access.state(|state, now| {
            note(state, alive, now);
            if let Ok(alive) = alive {
                state.region.set_origins_elsewhere(alive);
            }
        });
    }

    /// Takes how a message went.
    pub fn sent(&mut self, access: &mut impl Access, result: Result<(), Failure>) {
        access.state(|state, now| note(state, result, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NOW, ORIGIN, at, backed, origin, state};
    use std::vec;

    #[test]
    fn who_is_here_is_said_at_each_interval_and_to_the_others_if_it_changed() {
        let mut state = backed();
        state.enter(ORIGIN, NOW).unwrap();
        state.count_node(ORIGIN, 1);
        let mut heartbeat = Heartbeat::new([7; 16], Schedule::default());
        for event in [None, Some(Event::Elsewhere), Some(Event::Heartbeat)] {
            let wait = heartbeat.next(&mut at(&mut state, 0));
            assert!(matches!(wait, Next::Wait { at_most_ms: Some(1_000), .. }), "{wait:?}");
            event.into_iter().for_each(|event| heartbeat.notified(event));
            let call = heartbeat.next(&mut at(&mut state, 0));
            assert_eq!(call, Next::Call(Call::Origins(vec![ORIGIN])));
            heartbeat.heard(&mut at(&mut state, 0), Ok(&[ORIGIN, origin(9)]));
            assert_eq!(state.region.live_origins(NOW.mono), 2);
            if event == Some(Event::Heartbeat) {
                let Next::Call(Call::Broadcast(changes)) = heartbeat.next(&mut at(&mut state, 0)) else {
                    panic!()
                };
                assert!(changes.origins_changed && changes.sender == [7; 16]);
                heartbeat.sent(&mut at(&mut state, 0), Ok(()));
            }
        }
        assert!(matches!(heartbeat.next(&mut at(&mut state, 0)), Next::Wait { .. }));
    }

    #[test]
    fn nothing_is_said_while_the_store_is_not_asked() {
        let mut state = state().with_store(Schedule::default().store_breaker);
        let mut heartbeat = Heartbeat::new([7; 16], Schedule::default());
        for _ in 0..3 {
            assert!(matches!(heartbeat.next(&mut at(&mut state, 0)), Next::Wait { .. }));
            heartbeat.notified(Event::Heartbeat);
        }
    }
}
