//! Bounds on the number of streams: in all, for each address, and of those without a hello.
//!
//! A stream takes its slot before its first frame is read. One address has at most half of the slots. The stream of the
//! embedded limiter takes none, as there is only one.

use crate::net::listen::{Served, Turn, most_of_address, peer_of};
use crate::region::stream_error::StreamError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most streams open at one time, over all connections. Each worker of an Envoy has one, on a connection of its own.
pub const MAX_STREAMS: usize = 16_384;
/// Most streams that have not sent a hello; a filter sends it within some milliseconds.
const MAX_UNGREETED: usize = 2_048;
/// Most of these from one address; an Envoy has one stream for each of its workers.
const MAX_UNGREETED_OF_ADDRESS: usize = 256;

/// The open streams.
#[derive(Default)]
pub struct Slots {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: Count,
    of_address: HashMap<IpAddr, Count>,
}

#[derive(Clone, Copy, Default)]
struct Count {
    open: usize,
    ungreeted: usize,
}

/// The slot of one stream, freed when it is dropped.
pub struct Slot {
    slots: Arc<Slots>,
    address: SocketAddr,
    turn: Arc<Turn>,
    /// Once the stream's hello was accepted, its connection is in use.
    served: Option<Served>,
}

impl Slots {
    /// Takes a slot for a stream from `address`, on the connection that holds this `turn`.
    pub fn take(self: &Arc<Slots>, address: SocketAddr, turn: Arc<Turn>) -> Result<Slot, StreamError> {
        let mut state = self.state.lock();
        let of_address = state.of_address.get(&peer_of(address.ip())).copied().unwrap_or_default();
        if state.all.open >= MAX_STREAMS {
            return Err(StreamError::TooManyStreams(MAX_STREAMS));
        }
        if of_address.open >= most_of_address(MAX_STREAMS) {
            return Err(StreamError::TooManyOfAddress(of_address.open));
        }
        if of_address.ungreeted >= MAX_UNGREETED_OF_ADDRESS || state.all.ungreeted >= MAX_UNGREETED {
            return Err(StreamError::TooManySilent);
        }
        state.change(address, |count| {
            count.open += 1;
            count.ungreeted += 1;
        });
        Ok(Slot { slots: self.clone(), address, turn, served: None })
    }
}

impl State {
    fn change(&mut self, address: SocketAddr, change: impl Fn(&mut Count)) {
        let address = peer_of(address.ip());
        change(&mut self.all);
        let count = self.of_address.entry(address).or_default();
        change(count);
        if count.open == 0 {
            self.of_address.remove(&address);
        }
    }
}

impl Slot {
    /// The address that the stream comes from.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Notes that the stream's hello was accepted.
    pub fn greeted(&mut self) {
        if self.served.is_none() {
            self.served = Some(self.turn.serve());
            self.slots.state.lock().change(self.address, |count| count.ungreeted -= 1);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let greeted = self.served.is_some();
        self.slots.state.lock().change(self.address, |count| {
            count.open -= 1;
            count.ungreeted -= usize::from(!greeted);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &Arc<Slots>, address: [u8; 4]) -> Result<Slot, StreamError> {
        slots.take(SocketAddr::from((address, 1)), Arc::default())
    }

    #[test]
    fn streams_of_an_address_leave_room_for_others() {
        let slots = Arc::new(Slots::default());
        let mut held = Vec::new();
        while let Ok(mut slot) = take(&slots, [192, 0, 2, 1]) {
            slot.greeted();
            held.push(slot);
        }
        assert_eq!(held.len(), MAX_STREAMS / 2);
        let refused = take(&slots, [192, 0, 2, 1]).err();
        assert_eq!(refused, Some(StreamError::TooManyOfAddress(MAX_STREAMS / 2)));
        assert!(take(&slots, [192, 0, 2, 2]).is_ok());
        held.pop();
        assert!(take(&slots, [192, 0, 2, 1]).is_ok());
    }

    #[test]
    fn streams_without_a_hello_are_bounded_by_address_and_in_all() {
        let slots = Arc::new(Slots::default());
        let mut held = Vec::new();
        let addresses = (0..=u8::MAX).map(|last| [192, 0, 2, last]);
        for address in addresses.clone() {
            while let Ok(slot) = take(&slots, address) {
                held.push(slot);
            }
        }
        assert_eq!(held.len(), MAX_UNGREETED);
        assert_eq!(slots.state.lock().of_address.len(), MAX_UNGREETED / MAX_UNGREETED_OF_ADDRESS);
        held[0].greeted();
        held[0].greeted();
        assert!(take(&slots, [192, 0, 2, 200]).is_ok());
        drop(held);
        let state = slots.state.lock();
        assert_eq!((state.all.open, state.all.ungreeted, state.of_address.len()), (0, 0, 0));
    }
}
