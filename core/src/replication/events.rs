//! Events: how one part of an aggregator tells another that there is something to do.
//!
//! A event that notifications while nobody waits is heard by the next who does; to ring it twice is to ring it once.
//!
//! Leaves to others: waiting (`aggregator`).

/// Who is to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Subscribers may have something to be told.
    Push,
    /// Something waits for the region's store.
    Replay,
    /// Something waits for the region's other aggregators.
    Broadcast,
    /// The Envoys of this aggregator changed.
    Heartbeat,
    /// The Envoys of another aggregator did.
    Elsewhere,
    /// Messages of other aggregators may have been missed.
    Missed,
    /// The region may have lost what its own published figures could make up for.
    Recover,
    /// Live controls may have changed.
    Controls,
}

impl Event {
    /// All of them, in the order of their numbers.
    pub const ALL: [Event; 8] = [
        Event::Push,
        Event::Replay,
        Event::Broadcast,
        Event::Heartbeat,
        Event::Elsewhere,
        Event::Missed,
        Event::Recover,
        Event::Controls,
    ];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u8);

impl Events {
    /// None.
    pub const fn new() -> Events {
        Events(0)
    }

    /// With one more.
    #[must_use]
    pub const fn and(self, event: Event) -> Events {
        Events(self.0 | event.bit())
    }

    /// Rings one.
    pub fn notify(&mut self, event: Event) {
        self.0 |= event.bit();
    }

    /// Whether one notifications.
    pub const fn has(self, event: Event) -> bool {
        self.0 & event.bit() != 0
    }

    /// Whether none does.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Takes the first event that notifications and is among `awaited`: it notifications no more.
    pub fn take(&mut self, awaited: Events) -> Option<Event> {
        let heard = self.iter().find(|event| awaited.has(*event))?;
        self.0 &= !heard.bit();
        Some(heard)
    }

    /// Those that ring, in the order of [`Event::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Event> {
        Event::ALL.into_iter().filter(move |event| self.has(*event))
    }
}

impl From<Event> for Events {
    fn from(event: Event) -> Events {
        Events::new().and(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn a_bell_rings_until_it_is_heard_by_who_waits_for_it() {
        let mut events = Events::new();
        assert_eq!(events.take(Event::Push.into()), None);
        events.notify(Event::Recover);
        events.notify(Event::Push);
        events.notify(Event::Push);
        assert_eq!(events.iter().collect::<Vec<_>>(), vec![Event::Push, Event::Recover]);
        assert_eq!(events.take(Events::from(Event::Broadcast).and(Event::Push)), Some(Event::Push));
        assert_eq!(events.take(Event::Push.into()), None);
        assert!(events.has(Event::Recover) && !events.is_empty());
    }
}
