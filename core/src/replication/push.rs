//! Telling a subscriber what the others used: soon, but many changes at once.
//!
//! Whoever watches [`Event::Push`](super::Event::Push) wakes the subscribers that have something to be told
//! ([`RegionState::to_be_sent`](super::RegionState::to_be_told)) and then rests for [`COALESCE_MS`], so that a key which changes a thousand
//! times in that time is sent once. Each subscriber is sent what the region holds at the moment of sending.
//!
//! Leaves to others: who is to be told what (`region`), and peers that do not read (`aggregator`).

use super::figures::add;
use super::state::Turn;
use super::{Access, StreamId};
use crate::model::key::OriginId;
use crate::model::wire::Push;

/// Least time between two rounds of pushes, in milliseconds; a push may be late by this much.
pub const COALESCE_MS: u64 = 10;
/// Most frames sent to one subscriber in a round, so that a large snapshot leaves room for answers.
const FRAMES_PER_ROUND: usize = 16;

/// What a subscriber's stream does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send this, and ask again.
    Send(Push),
    /// Ask again after so many milliseconds.
    Sleep(u64),
    /// Ask again when this stream is among those that have something to be told, or was superseded.
    Wait,
    /// Another stream has its place.
    Over,
}

/// Pushes on one stream until another one takes over.
#[derive(Debug)]
pub struct Pusher {
    origin: OriginId,
    id: StreamId,
    frames: usize,
}

impl Pusher {
    /// For a stream that has subscribed.
    pub fn new(origin: OriginId, id: StreamId) -> Pusher {
        Pusher { origin, id, frames: 0 }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Step {
        loop {
            if self.frames == FRAMES_PER_ROUND {
                self.frames = 0;
                return Step::Sleep(COALESCE_MS);
            }
            let turn = access.state(|state, now| {
                let turn = state.next_push(self.origin, self.id, now);
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

/// A step of a snapshot that found nothing need not be sent.
fn is_empty(push: &Push) -> bool {
    push.snapshots.is_empty() && !push.complete
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NOW, ORIGIN, at, count, origin, state};
    use super::*;
    use crate::model::wire::{FilterFrame, MAX_FRAME_CELLS, Report};
    use std::format;
    use std::vec::Vec;

    #[test]
    fn a_large_snapshot_leaves_room_for_answers() {
        let mut state = state();
        let keys = 17 * MAX_FRAME_CELLS;
        for from in (0..keys).step_by(MAX_FRAME_CELLS) {
            let to = keys.min(from + MAX_FRAME_CELLS);
            let counts: Vec<_> = (from..to).map(|key| count(&format!("i{key}"), 9)).collect();
            let report = Some(Report { id: 1, counts });
            state.take(origin(2), FilterFrame { report, ..FilterFrame::default() }, NOW).unwrap();
        }
        let id = state.enter(ORIGIN, NOW).unwrap().id;
        state.subscribe(ORIGIN, id);
        let mut pusher = Pusher::new(ORIGIN, id);
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
                Step::Over => panic!("nobody else subscribed"),
            }
        }
        assert!(complete && slept > 0 && sent >= keys, "{complete} {slept} {sent}");
        assert_eq!(state.figures.pushed_cells, sent as u64);
        let other = state.enter(ORIGIN, NOW).unwrap().id;
        state.subscribe(ORIGIN, other);
        assert_eq!(pusher.next(&mut at(&mut state, 0)), Step::Over);
    }
}
