//! Events: how one part of an aggregator notifies another that it has work to do.
//!
//! An event that is notified while no task waits for it is kept for the next task that does. Notifying it twice has the
//! same effect as once.

/// Which part has work to do, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Cells may wait to be sent to subscribers.
    Push,
    /// Counts wait to be written to the region's store.
    Replay,
    /// Changes wait to be published to the region's other aggregators.
    Broadcast,
    /// The set of Envoys connected to this aggregator has changed.
    Heartbeat,
    /// The set of Envoys connected to another aggregator has changed.
    Elsewhere,
    /// Messages of other aggregators may have been missed.
    Missed,
    /// The region may have lost counts that it can recover from what it has published to the database.
    Recover,
    /// Live controls may have changed.
    Controls,
    /// Keys are due at once for publication to other regions.
    Publish,
    /// The limits of live control have changed.
    Limits,
}

impl Event {
    /// All events, in the order of their numbers.
    pub const ALL: [Event; 10] = [
        Event::Push,
        Event::Replay,
        Event::Broadcast,
        Event::Heartbeat,
        Event::Elsewhere,
        Event::Missed,
        Event::Recover,
        Event::Controls,
        Event::Publish,
        Event::Limits,
    ];

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u16);

impl Events {
    /// The empty set.
    pub const fn new() -> Events {
        Events(0)
    }

    /// The set with one more event.
    #[must_use]
    pub const fn and(self, event: Event) -> Events {
        Events(self.0 | event.bit())
    }

    /// Notifies an event.
    pub fn notify(&mut self, event: Event) {
        self.0 |= event.bit();
    }

    /// Whether the event is notified.
    pub const fn has(self, event: Event) -> bool {
        self.0 & event.bit() != 0
    }

    /// Whether no event is notified.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Removes and returns the first notified event that is in `awaited`.
    pub fn take(&mut self, awaited: Events) -> Option<Event> {
        let event = self.iter().find(|event| awaited.has(*event))?;
        self.0 &= !event.bit();
        Some(event)
    }

    /// The notified events, in the order of [`Event::ALL`].
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
    fn an_event_is_kept_until_a_task_that_waits_for_it_takes_it() {
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
