//! Pushes the others' use to a subscriber: soon, but with many changes coalesced.
//!
//! The task that waits for [`Event::Push`](super::Event::Push) wakes the subscribers for which cells wait
//! ([`RegionState::to_be_sent`](super::RegionState::to_be_sent)), then sleeps for [`COALESCE_MS`]. A key that changes a
//! thousand times in that time is sent once. Each subscriber is sent the counts that the region holds at the moment of
//! sending.

use super::figures::add;
use super::state::Turn;
use super::{Access, StreamId};
use crate::model::key::NodeId;
use crate::model::wire::Push;

/// Least time between two rounds of pushes, in milliseconds; a push may be late by this much.
pub const COALESCE_MS: u64 = 10;
/// Most frames sent to one subscriber in a round, so that answers can be sent between the frames of a large snapshot.
const FRAMES_PER_ROUND: usize = 16;

/// What the driver of a subscriber's stream does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send this, then call [`Pusher::next`] again.
    Send(Push),
    /// Call [`Pusher::next`] again after this many milliseconds.
    Sleep(u64),
    /// Call [`Pusher::next`] again when cells wait for this stream, or when another stream has superseded it.
    Wait,
    /// Another stream is the subscriber now.
    Over,
}

/// Pushes on one stream until another stream supersedes it.
#[derive(Debug)]
pub struct Pusher {
    node: NodeId,
    id: StreamId,
    frames: usize,
}

impl Pusher {
    /// For a stream that has subscribed.
    pub fn new(node: NodeId, id: StreamId) -> Pusher {
        Pusher { node, id, frames: 0 }
    }

    /// Returns the next step.
    pub fn next(&mut self, access: &mut impl Access) -> Step {
        loop {
            if self.frames == FRAMES_PER_ROUND {
                self.frames = 0;
                return Step::Sleep(COALESCE_MS);
            }
            let turn = access.state(|state, now| {
                let turn = state.next_push(self.node, self.id, now);
                if let Turn::Push(push) = &turn
                    && !is_empty(push)
                {
                    add(&mut state.figures.pushes, 1);
                    add(&mut state.figures.pushed_cells, push.snapshots.len());
                }
                turn
            });
            self.frames += 1;
            match turn {
                Turn::Superseded => return Step::Over,
                Turn::Idle => {
                    self.frames = 0;
                    return Step::Wait;
                }
                Turn::Push(push) if is_empty(&push) => {}
                Turn::Push(push) => return Step::Send(push),
            }
        }
    }
}

/// One step through a snapshot may find no cells; then there is nothing to send.
fn is_empty(push: &Push) -> bool {
    push.snapshots.is_empty() && !push.complete
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NODE, NOW, at, count, node, state};
    use super::*;
    use crate::model::wire::{FilterFrame, MAX_FRAME_CELLS, Report};
    use std::format;
    use std::vec::Vec;

    #[test]
    fn between_the_frames_of_a_large_snapshot_there_are_pauses() {
        let mut state = state();
        let keys = 17 * MAX_FRAME_CELLS;
        for from in (0..keys).step_by(MAX_FRAME_CELLS) {
            let to = keys.min(from + MAX_FRAME_CELLS);
            let counts: Vec<_> = (from..to).map(|key| count(&format!("i{key}"), 9)).collect();
            let report = Some(Report { id: 1, counts });
            state.take(node(2), FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
        }
        let id = state.enter(NODE, NOW).unwrap().id;
        state.subscribe(NODE, id);
        let mut pusher = Pusher::new(NODE, id);
        let (mut sent, mut complete, mut slept) = (0, false, 0);
        loop {
            match pusher.next(&mut at(&mut state, 0)) {
                Step::Send(push) => {
                    sent += push.snapshots.len();
                    complete |= push.complete;
                }
                Step::Sleep(ms) => {
                    assert_eq!(ms, COALESCE_MS);
                    slept += 1;
                }
                Step::Wait => break,
                Step::Over => panic!("no other stream subscribed"),
            }
        }
        assert!(complete && slept > 0 && sent >= keys, "{complete} {slept} {sent}");
        assert_eq!(state.figures.pushed_cells, sent as u64);
        let other = state.enter(NODE, NOW).unwrap().id;
        state.subscribe(NODE, other);
        assert_eq!(pusher.next(&mut at(&mut state, 0)), Step::Over);
    }
}
