//! Which Envoys are alive: said of one's own, and heard of those elsewhere in the region.
//!
//! Leaves to others: who counts as alive (`region`, and the store by its own clock), what their number means.

use crate::model::cadence::Cadence;
use crate::model::key::OriginId;
use crate::model::wire::Changes;
use crate::replication::bells::{Bell, Bells};
use crate::replication::failure::Failure;
use crate::replication::{Access, Next, note};
use alloc::vec::Vec;

/// What the store is asked to do. It has [`Cadence::replay_timeout_ms`].
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Note that these are alive, and say who else is; then [`Announcer::heard`].
    Origins(Vec<OriginId>),
    /// Publish this; then [`Announcer::sent`].
    Tell(Changes),
}

/// Announces for as long as the aggregator runs.
#[derive(Debug)]
pub struct Announcer {
    id: [u8; 16],
    cadence: Cadence,
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

impl Announcer {
    /// For the aggregator that is called `id`.
    pub fn new(id: [u8; 16], cadence: Cadence) -> Announcer {
        Announcer { id, cadence, changed: false, stage: Stage::Waiting }
    }

    /// What to do now.
    pub fn next(&mut self, access: &mut impl Access) -> Next<Call> {
        match core::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Woken => {
                let mine = access.desk(|desk, now| {
                    let usable = desk.is_usable(now.mono);
                    usable.then(|| desk.region.origins_here(now.mono).collect())
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
                return Next::Call(Call::Tell(changes));
            }
            Stage::Named | Stage::Waiting => {}
        }
        (self.stage, self.changed) = (Stage::Woken, false);
        let bells = Bells::from(Bell::Announce).and(Bell::Elsewhere);
        Next::Wait { bells, at_most_ms: Some(self.cadence.heartbeat_ms) }
    }

    /// A bell rang.
    pub fn rang(&mut self, bell: Bell) {
        self.changed = bell == Bell::Announce;
    }

    /// Takes who is alive in the region.
    pub fn heard(&mut self, access: &mut impl Access, alive: Result<&[OriginId], Failure>) {
        access.desk(|desk, now| {
            note(desk, alive, now);
            if let Ok(alive) = alive {
                desk.region.set_origins_elsewhere(alive);
            }
        });
    }

    /// Takes how a message went.
    pub fn sent(&mut self, access: &mut impl Access, result: Result<(), Failure>) {
        access.desk(|desk, now| note(desk, result, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NOW, ORIGIN, at, backed, desk, origin};
    use std::vec;

    #[test]
    fn who_is_here_is_said_at_each_beat_and_to_the_others_if_it_changed() {
        let mut desk = backed();
        desk.enter(ORIGIN, NOW).unwrap();
        desk.count_node(ORIGIN, 1);
        let mut announcer = Announcer::new([7; 16], Cadence::default());
        for bell in [None, Some(Bell::Elsewhere), Some(Bell::Announce)] {
            let wait = announcer.next(&mut at(&mut desk, 0));
            assert!(matches!(wait, Next::Wait { at_most_ms: Some(1_000), .. }), "{wait:?}");
            bell.into_iter().for_each(|bell| announcer.rang(bell));
            let call = announcer.next(&mut at(&mut desk, 0));
            assert_eq!(call, Next::Call(Call::Origins(vec![ORIGIN])));
            announcer.heard(&mut at(&mut desk, 0), Ok(&[ORIGIN, origin(9)]));
            assert_eq!(desk.region.live_origins(NOW.mono), 2);
            if bell == Some(Bell::Announce) {
                let Next::Call(Call::Tell(changes)) = announcer.next(&mut at(&mut desk, 0)) else { panic!() };
                assert!(changes.origins_changed && changes.sender == [7; 16]);
                announcer.sent(&mut at(&mut desk, 0), Ok(()));
            }
        }
        assert!(matches!(announcer.next(&mut at(&mut desk, 0)), Next::Wait { .. }));
    }

    #[test]
    fn nothing_is_said_while_the_store_is_not_asked() {
        let mut desk = desk().with_store(Cadence::default().store_breaker);
        let mut announcer = Announcer::new([7; 16], Cadence::default());
        for _ in 0..3 {
            assert!(matches!(announcer.next(&mut at(&mut desk, 0)), Next::Wait { .. }));
            announcer.rang(Bell::Announce);
        }
    }
}
