//! Bells: how one part of an aggregator tells another that there is something to do.
//!
//! A bell that rings while nobody waits is heard by the next who does; to ring it twice is to ring it once.
//!
//! Leaves to others: waiting (`aggregator`).

/// Who is to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bell {
    /// Subscribers may have something to be told.
    Push,
    /// Something waits for the region's store.
    Replay,
    /// Something waits for the region's other aggregators.
    Tell,
    /// The Envoys of this aggregator changed.
    Announce,
    /// The Envoys of another aggregator did.
    Elsewhere,
    /// Messages of other aggregators may have been missed.
    Missed,
    /// The region may have lost what its own published figures could make up for.
    Recover,
    /// Live controls may have changed.
    Controls,
}

impl Bell {
    /// All of them, in the order of their numbers.
    pub const ALL: [Bell; 8] = [
        Bell::Push,
        Bell::Replay,
        Bell::Tell,
        Bell::Announce,
        Bell::Elsewhere,
        Bell::Missed,
        Bell::Recover,
        Bell::Controls,
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of bells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bells(u8);

impl Bells {
    /// None.
    pub const fn new() -> Bells {
        Bells(0)
    }

    /// With one more.
    #[must_use]
    pub const fn and(self, bell: Bell) -> Bells {
        Bells(self.0 | bell.bit())
    }

    /// Rings one.
    pub fn ring(&mut self, bell: Bell) {
        self.0 |= bell.bit();
    }

    /// Whether one rings.
    pub const fn has(self, bell: Bell) -> bool {
        self.0 & bell.bit() != 0
    }

    /// Whether none does.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Takes the first bell that rings and is among `awaited`: it rings no more.
    pub fn hear(&mut self, awaited: Bells) -> Option<Bell> {
        let heard = self.iter().find(|bell| awaited.has(*bell))?;
        self.0 &= !heard.bit();
        Some(heard)
    }

    /// Those that ring, in the order of [`Bell::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Bell> {
        Bell::ALL.into_iter().filter(move |bell| self.has(*bell))
    }
}

impl From<Bell> for Bells {
    fn from(bell: Bell) -> Bells {
        Bells::new().and(bell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn a_bell_rings_until_it_is_heard_by_who_waits_for_it() {
        let mut bells = Bells::new();
        assert_eq!(bells.hear(Bell::Push.into()), None);
        bells.ring(Bell::Recover);
        bells.ring(Bell::Push);
        bells.ring(Bell::Push);
        assert_eq!(bells.iter().collect::<Vec<_>>(), vec![Bell::Push, Bell::Recover]);
        assert_eq!(bells.hear(Bells::from(Bell::Tell).and(Bell::Push)), Some(Bell::Push));
        assert_eq!(bells.hear(Bell::Push.into()), None);
        assert!(bells.has(Bell::Recover) && !bells.is_empty());
    }
}
