//! Heartbeats: writes to the store which Envoys are connected here, and reads which are connected elsewhere in the
//! region.

use crate::model::key::NodeId;
use crate::model::schedule::Schedule;
use crate::model::wire::Changes;
use crate::replication::events::{Event, Events};
use crate::replication::failure::Failure;
use crate::replication::members::Member;
use crate::replication::state::Rewriting;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;

/// A call to the store. Its deadline is [`Schedule::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Record that these nodes and this aggregator are alive and return all that are alive in the region; then call
    /// [`Heartbeat::received`].
    Nodes(Vec<NodeId>, Member),
    /// Publish this message; then call [`Heartbeat::sent`].
    Broadcast(Changes),
}

/// What is alive in the region, as its store lists it.
#[derive(Clone, Copy, Debug)]
pub struct Alive<'a> {
    /// Nodes.
    pub nodes: &'a [NodeId],
    /// Aggregators.
    pub aggregators: &'a [Member],
}

/// Runs for as long as the aggregator does.
#[derive(Debug)]
pub struct Heartbeat {
    id: [u8; 16],
    schedule: Schedule,
    /// The set of Envoys connected here has changed.
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
    /// For the aggregator with this `id`.
    pub fn new(id: [u8; 16], schedule: Schedule) -> Heartbeat {
        Heartbeat { id, schedule, changed: false, stage: Stage::Waiting }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Call> {
        match core::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Woken => {
                let mine = access.state(|state, now| {
                    let usable = state.is_usable(now.mono);
                    let owes = state.rewriting != Rewriting::Done;
                    usable.then(|| (state.region.nodes.alive_here(now.mono).collect(), owes))
                });
                if let Some((mine, owes)) = mine {
                    self.stage = Stage::Named;
                    return Next::Call(Call::Nodes(mine, Member { id: self.id, owes }));
                }
            }
            Stage::Named if self.changed => {
                let sender = self.id.to_vec();
                self.changed = false;
                let changes = Changes { sender, nodes_changed: true, ..Changes::default() };
                return Next::Call(Call::Broadcast(changes));
            }
            Stage::Named | Stage::Waiting => {}
        }
        (self.stage, self.changed) = (Stage::Woken, false);
        let events = Events::from(Event::Heartbeat).and(Event::Elsewhere);
        Next::Wait { events, at_most_ms: Some(self.schedule.heartbeat_ms) }
    }

    /// An event was notified.
    pub fn notified(&mut self, event: Event) {
        self.changed = event == Event::Heartbeat;
    }

    /// Takes what is alive in the region.
    pub fn received(&mut self, access: &mut impl Access, alive: Result<Alive<'_>, Failure>) {
        let id = self.id;
        access.state(|state, now| {
            note(state, alive, now);
            if let Ok(alive) = alive {
                state.region.nodes.set_elsewhere(alive.nodes, now.mono);
                state.members.listed(alive.aggregators, &id, now.mono);
            }
        });
    }

    /// Takes the result of publishing a message.
    pub fn sent(&mut self, access: &mut impl Access, result: Result<(), Failure>) {
        access.state(|state, now| note(state, result, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NODE, NOW, at, backed, node, state};
    use std::vec;

    #[test]
    fn nodes_are_written_at_each_interval_and_a_change_is_published_to_the_peers() {
        let mut state = backed();
        state.enter(NODE, NOW).unwrap();
        state.count_node(NODE, 1);
        let mut heartbeat = Heartbeat::new([7; 16], Schedule::default());
        for event in [None, Some(Event::Elsewhere), Some(Event::Heartbeat)] {
            let wait = heartbeat.next(&mut at(&mut state, 0));
            assert!(matches!(wait, Next::Wait { at_most_ms: Some(1_000), .. }), "{wait:?}");
            event.into_iter().for_each(|event| heartbeat.notified(event));
            let call = heartbeat.next(&mut at(&mut state, 0));
            let me = Member { id: [7; 16], owes: false };
            assert_eq!(call, Next::Call(Call::Nodes(vec![NODE], me)));
            let alive = Alive { nodes: &[NODE, node(9)], aggregators: &[] };
            heartbeat.received(&mut at(&mut state, 0), Ok(alive));
            assert_eq!(state.region.nodes.alive(NOW.mono), 2);
            if event == Some(Event::Heartbeat) {
                let Next::Call(Call::Broadcast(changes)) = heartbeat.next(&mut at(&mut state, 0)) else {
                    panic!()
                };
                assert!(changes.nodes_changed && changes.sender == [7; 16]);
                heartbeat.sent(&mut at(&mut state, 0), Ok(()));
            }
        }
        assert!(matches!(heartbeat.next(&mut at(&mut state, 0)), Next::Wait { .. }));
    }

    #[test]
    fn nothing_is_sent_while_the_store_is_not_usable() {
        let mut state = state().with_store(Schedule::default().store_breaker);
        let mut heartbeat = Heartbeat::new([7; 16], Schedule::default());
        for _ in 0..3 {
            assert!(matches!(heartbeat.next(&mut at(&mut state, 0)), Next::Wait { .. }));
            heartbeat.notified(Event::Heartbeat);
        }
    }
}
